"""The ready configs about the precision of GEMMs and its cost, in a model that trains."""

import h5py
import pytest
import torch
from config_questions import ROOT
from debug_helpers import message_log

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling

PARTS = ("fc1", "fc2")


@pytest.fixture
def model() -> torch.nn.ModuleDict:
    torch.manual_seed(1)
    options = {"params_dtype": torch.bfloat16}
    return torch.nn.ModuleDict(
        {
            "fc1": te.Linear(32, 64, name="model.layers.0.layernorm_mlp.fc1", **options),
            "fc2": te.Linear(64, 32, name="model.layers.0.layernorm_mlp.fc2", **options),
            "lm_head": te.Linear(32, 32, name="lm_head", **options),
        }
    )


def run(name, model, log_dir, first_iteration, fp8_parts=PARTS):
    x = torch.randn(32, 32, dtype=torch.bfloat16).requires_grad_()
    config = ROOT / "configs" / f"{name}.yaml"
    with debug.session(config, log_dir=log_dir, init_training_step=first_iteration):
        for _ in range(2):
            hidden = x
            for part, layer in model.items():
                with te.autocast(enabled=part in fp8_parts, recipe=Float8CurrentScaling()):
                    hidden = layer(hidden)
            hidden.float().square().mean().backward()
            debug.step()


def test_is_it_really_fp8_lets_a_run_pass_that_is(tmp_path, model):
    run("is_it_really_fp8", model, tmp_path, 0)
    assert "WARNING" not in message_log(tmp_path)


def test_is_it_really_fp8_stops_a_run_that_is_not(tmp_path, model):
    with pytest.raises(telens.Error, match="3 expectations do not hold") as stopped:
        run("is_it_really_fp8", model, tmp_path, 0, fp8_parts=("fc1",))
    reason = "model.layers.0.layernorm_mlp.fc2 dgrad was to be FP8, ran in BF16: no recipe"
    assert reason in str(stopped.value)


def test_dump_one_gemm_writes_six_tensors_once(tmp_path, model):
    run("dump_one_gemm", model, tmp_path, 10)
    files = sorted(tmp_path.glob("tensor_dumps/*/*/*"))
    stem = "rank_0/iter_000010/model_layers_0_layernorm_mlp_fc1"
    tensors = ["activation", "weight", "gradient", "output", "wgrad", "dgrad"]
    names = sorted([*tensors, *(f"{gemm}_gemm" for gemm in ("fprop", "dgrad", "wgrad"))])
    assert files == [tmp_path / f"tensor_dumps/{stem}_{name}.h5" for name in names]
    with h5py.File(files[0]) as file:
        assert file["rowwise/codes"].attrs["format"] == b"E4M3"


def test_gemm_error_measures_every_gemm(tmp_path, model):
    run("gemm_error", model, tmp_path, 50)
    records = telens.open_run(tmp_path).records(statistic="gemm_relative_error")
    assert set(records.iteration) == {50}
    assert len(records) == 3 * len(model)
    fp8 = records.layer.str.contains("fc")
    assert records.value[fp8].min() > records.value[~fp8].max() > 0
