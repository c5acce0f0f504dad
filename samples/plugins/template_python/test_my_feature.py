"""Watches one layer with the feature and checks the run file."""

from pathlib import Path

import torch

import telens

FOLDER = Path(__file__).parent


def test_one_row_of_sixteen_lies_beyond_the_threshold(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(16, 16))
    x = torch.zeros(16, 16)
    x[0] = 3.0
    config = FOLDER / "my_feature.yaml"
    with telens.watch(model, config, tmp_path, feature_dirs=FOLDER / "features"):
        model(x)
        telens.step()
    (record,) = telens.open_run(tmp_path).records(statistic="beyond%").itertuples()
    assert (record.layer, record.tensor, record.value) == ("0", "activation", 100 / 16)
