"""Runs one layer with the feature and checks the run file."""

from pathlib import Path

import torch

import telens
import telens.debug as debug
import telens.pytorch as te

FOLDER = Path(__file__).parent


def test_one_row_of_sixteen_lies_beyond_the_threshold(tmp_path):
    layer = te.Linear(16, 16, name="layer", params_dtype=torch.float32, device="cpu")
    x = torch.zeros(16, 16)
    x[0] = 3.0
    config = FOLDER / "my_feature.yaml"
    with debug.session(config, feature_dirs=FOLDER / "features", log_dir=tmp_path):
        layer(x)
        debug.step()
    (record,) = telens.open_run(tmp_path).records(statistic="beyond%").itertuples()
    assert (record.layer, record.tensor, record.value) == ("layer", "activation", 100 / 16)
