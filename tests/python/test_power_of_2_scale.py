"""DelayedScaling(power_of_2_scale=True): the recorded scales are powers of two."""

import math

import pytest
import torch

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling


@pytest.mark.parametrize("margin", [0, 2])
def test_power_of_2_scale_matches_the_formula(tmp_path, margin):
    asked = {"tensors": ["activation", "weight", "gradient"], "stats": ["scale_inv_max"]}
    config = {
        "all": {
            "enabled": True,
            "layers": {"layer_types": "all"},
            "transformer_engine": {
                "LogTensorStats": {"enabled": True, **asked, "stats": ["cur_amax"]},
                "LogFp8TensorStats": {"enabled": True, **asked},
            },
        }
    }
    found = {}
    for power_of_2 in (True, False):
        layer, log_dir = te.Linear(32, 32, name="fc"), tmp_path / str(power_of_2)
        recipe = DelayedScaling(
            power_of_2_scale=power_of_2,
            margin=margin,
            amax_history_len=1,
            amax_compute_algo="most_recent",
        )
        with debug.session(config, log_dir=log_dir):
            for step in range(3):
                # Factors of 0.6 and 1.2: amaxes above and below the format's largest value times a
                # power of two.
                x = (torch.randn(16, 32) * 0.6 * 2**step).requires_grad_()
                with te.autocast(recipe=recipe):
                    out = layer(x)
                (out * 1.2 * 3**step).square().sum().backward()
                debug.step()
        run = telens.open_run(log_dir)
        for tensor, largest in (("activation", 448), ("weight", 448), ("gradient", 57344)):
            amax = run.records(tensor=tensor, statistic="cur_amax")["value"].tolist()
            scale_inv = run.records(tensor=tensor, statistic="scale_inv_max")["value"].tolist()
            assert len(amax) == len(scale_inv) == 3
            found[power_of_2, tensor] = [1 / each for each in scale_inv[1:]]
            # The scale of an iteration comes from the amax of the one before.
            exact = [largest / each / 2**margin for each in amax[:2]]
            expected = [2.0 ** math.floor(math.log2(each)) for each in exact]
            if power_of_2:
                assert found[power_of_2, tensor] == expected
            else:
                assert found[power_of_2, tensor] == pytest.approx(exact, rel=1e-5)
                assert found[power_of_2, tensor] != expected
