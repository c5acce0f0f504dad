"""FP8 with any number of tokens in a session: no bit changes, padding is not recorded, a notice
is.
"""

import json
import subprocess

import h5py
import pytest
import torch
from debug_helpers import Scalars, section, train

import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

RECIPES = {
    "delayed": DelayedScaling(),
    "current": Float8CurrentScaling(),
    "mxfp8": MXFP8BlockScaling(),
    "blocks": Float8BlockScaling(),
    "nvfp4": NVFP4BlockScaling(),
}
TENSORS = ["activation", "gradient", "output", "dgrad", "wgrad", "weight"]


def trained(recipe, tokens: int, config=None, log_dir=None, logger=None) -> list[torch.Tensor]:
    """Returns the final tensors of two steps of a LayerNormMLP."""
    torch.manual_seed(2)
    layer = te.LayerNormMLP(64, 96, params_dtype=torch.bfloat16, name="mlp")
    x = torch.randn(tokens, 64, dtype=torch.bfloat16).requires_grad_()
    if config is None:
        y = train(layer, x, steps=2, fp8=True, recipe=recipe)
    else:
        with debug.session(config, log_dir=log_dir, statistics_logger=logger):
            y = train(layer, x, steps=2, fp8=True, recipe=recipe)
    return [y, x.grad, *(parameter.grad for parameter in layer.parameters())]


@pytest.fixture
def watching() -> dict:
    config = section(
        {
            "LogTensorStats": {
                "enabled": True,
                "tensors": TENSORS,
                "stats": ["numel", "zeros", "max", "l2_norm"],
            },
            "LogFp8TensorStats": {
                "enabled": True,
                "tensors": ["activation", "gradient"],
                "stats": ["underflows%", "mse", "scale_inv_min"],
            },
            "DumpTensors": {
                "enabled": True,
                "tensors": ["activation"],
                "high_precision_tensor": True,
                "quantized_tensor": True,
            },
        }
    )
    config["ledger"] = section({"PrecisionLedger": {"enabled": True}}, namespace="telens")[
        "section"
    ]
    return config


@pytest.mark.parametrize("tokens", [1, 5, 50])
@pytest.mark.parametrize("name", RECIPES)
def test_a_session_changes_no_bit_of_them(tmp_path, watching, name, tokens):
    plain = trained(RECIPES[name], tokens)
    watched = trained(RECIPES[name], tokens, watching, tmp_path)
    for one, other in zip(plain, watched, strict=True):
        assert one.shape == other.shape
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", RECIPES)
def test_statistics_and_dumps_exclude_padding(tmp_path, watching, name):
    scalars = Scalars()
    tokens = 5
    trained(RECIPES[name], tokens, watching, tmp_path, scalars)
    for tensor, columns in {"activation": 64, "gradient": 96, "output": 96, "dgrad": 64}.items():
        assert set(scalars.values(f"mlp.fc1_{tensor}_numel").values()) == {tokens * columns}
    assert set(scalars.values("mlp.fc1_activation_zeros").values()) == {0}
    (dump,) = tmp_path.glob("tensor_dumps/rank_0/iter_000000/mlp_fc1_activation.h5")
    with h5py.File(dump) as file:
        shapes = {}
        file.visititems(lambda path, item: shapes.update({path: getattr(item, "shape", None)}))
    (high,) = {shape for path, shape in shapes.items() if path.startswith("high_precision")} - {
        None
    }
    assert high == (tokens, 64)
    assert shapes["rowwise/codes"] == (tokens, 32 if name == "nvfp4" else 64)


MULTIPLES = {
    "delayed": (16, 16),
    "current": (16, 16),
    "mxfp8": (32, 32),
    "blocks": (16, 128),
    "nvfp4": (16, 32),
}


@pytest.mark.parametrize("name", RECIPES)
def test_ledger_reports_the_padding_of_a_gemm(tmp_path, watching, build_folder, name):
    trained(RECIPES[name], 5, watching, tmp_path)
    result = subprocess.run(
        [build_folder / "bin/telens", "ledger", tmp_path, "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows, along = MULTIPLES[name]
    for row in json.loads(result.stdout):
        multiple = along if row["gemm"] == "wgrad" else rows
        assert f"tokens to a multiple of {multiple}, at first 5 to {multiple}" in row["kernel"]
        assert row["fallback"] == ""


def test_ledger_omits_padding_if_none_is_needed(tmp_path, watching, build_folder):
    trained(Float8CurrentScaling(), 48, watching, tmp_path)
    result = subprocess.run(
        [build_folder / "bin/telens", "ledger", tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "multiple" not in result.stdout


@pytest.mark.parametrize("name", RECIPES)
def test_rows_of_zeros_change_no_output(name):
    torch.manual_seed(3)
    layer = te.Linear(64, 96, params_dtype=torch.bfloat16)
    x = torch.randn(7, 64, dtype=torch.bfloat16)
    with te.autocast(recipe=RECIPES[name]), torch.no_grad():
        odd = layer(x)
        padded = layer(torch.nn.functional.pad(x, (0, 0, 0, 25)))
    assert torch.equal(odd, padded[:7])


@pytest.mark.parametrize("name", ["MXFP8E4M3", "FP8BLOCKE4M3", "NVFP4"])
def test_fake_quant_takes_any_number_of_tokens_too(tmp_path, name):
    config = section(
        {
            "FakeQuant": {
                "enabled": True,
                "gemms": ["fprop", "dgrad", "wgrad"],
                "tensors": ["activation", "gradient"],
                "quant_format": name,
            }
        }
    )
    layer = te.Linear(64, 64, name="fc")
    x = torch.randn(5, 64).requires_grad_()
    with debug.session(config, log_dir=tmp_path):
        y = train(layer, x)
    assert y.shape == (5, 64)
    assert layer.weight.grad.isfinite().all()
