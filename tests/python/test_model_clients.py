"""Models of other libraries that are built from Transformer Engine's layers train on ours without
changes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import telens

pytest.importorskip("transformers")

pytestmark = pytest.mark.long

CLIENTS = Path(__file__).parent / "clients"
# Script -> the format in which it passes sequences to te.TransformerLayer.
MODELS = {
    "llama_client.py": ("bshd",),
    "gemma_client.py": ("bshd",),
    "esm2_client.py": ("bshd", "thd"),
    "packed_llama_client.py": ("bshd", "thd"),
}
CASES = [(script, form) for script, forms in MODELS.items() for form in forms]
FP8 = ("delayed", "current")

CONFIG = """\
stats:
  enabled: True
  layers: {layer_types: all}
  transformer_engine:
    LogTensorStats: {enabled: True, tensors: [activation, weight, gradient], stats: [max]}
"""

# Models and references sum the same FP32 products in different orders. The rounding error of a sum
# of n products is below sqrt(n) u of the sum's RMS (u = 2^-24; Higham and Mary, 2019), n is at most
# 128, and a logit depends on 2 layers of 6 products and the head. Errors of both models add up in
# quadrature; the largest of 4,608 logits is below 5 standard deviations.
LOGITS = 5 * (2 * (2 * 6 + 1) * 128) ** 0.5 * 2**-24


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> tuple[Path, dict]:
    """The JSON that each script printed. All run in one process, which saves imports."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "debug.yaml").write_text(CONFIG)
    command_lines = [
        ["--device", "cpu", "--config", "debug.yaml", "--log-dir", script, str(CLIENTS / script)]
        for script in MODELS
    ]
    done = subprocess.run(
        [sys.executable, str(CLIENTS / "run_scripts.py"), json.dumps(command_lines)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results = zip(MODELS, json.loads(done.stdout.splitlines()[-1]), strict=True)
    printed = {}
    for script, result in results:
        assert result["status"] in (0, None), result["err"]
        printed[script] = json.loads(result["out"].splitlines()[-1])
    return folder, printed


@pytest.mark.parametrize(("script", "form"), CASES)
def test_logits_match_transformers(ran, script, form):
    assert ran[1][script]["differences"][form] < LOGITS


@pytest.mark.parametrize(("script", "form"), CASES)
def test_fp32_training_matches_transformers(ran, script, form):
    printed = ran[1][script]
    assert printed["losses"][form]["fp32"] == pytest.approx(printed["reference"], rel=1e-5)
    assert printed["reference"][-1] < 0.9 * printed["reference"][0]


@pytest.mark.parametrize("recipe", FP8)
@pytest.mark.parametrize(("script", "form"), CASES)
def test_fp8_training_follows_fp32_without_equaling_it(ran, script, form, recipe):
    losses = ran[1][script]["losses"][form]
    assert losses[recipe] == pytest.approx(losses["fp32"], rel=0.05)
    assert all(a != b for a, b in zip(losses[recipe], losses["fp32"], strict=True))
    assert losses[recipe][-1] < 0.9 * losses[recipe][0]


def test_cached_generation_matches_transformers(ran):
    found, expected = ran[1]["gemma_client.py"]["generated"]
    assert found == expected
    assert len({token for tokens in expected for token in tokens}) > 2


BLOCK = (
    "self_attention.layernorm_qkv",
    "self_attention.proj",
    "layernorm_mlp.fc1",
    "layernorm_mlp.fc2",
)
# Layers of a model; te.TransformerLayer with a layer_number is counted from 1.
LAYERS = {
    "llama_client.py": [f"model.layers.{i}.{name}" for i in (0, 1) for name in BLOCK],
    "gemma_client.py": [f"model.layers.{i}.{name}" for i in (1, 2) for name in BLOCK],
    "esm2_client.py": ["dense", "decoder", *(f"layers.{i}.{n}" for i in (1, 2) for n in BLOCK)],
    "packed_llama_client.py": ["head", *(f"layers.{i}.{name}" for i in (1, 2) for name in BLOCK)],
}


@pytest.mark.parametrize("script", MODELS)
def test_session_records_every_layer(ran, script):
    # Of each form, the first model only computes logits; the others are trained.
    numbers = [4 * form + i for form in range(len(MODELS[script])) for i in (2, 3, 4)]
    rows = telens.open_run(ran[0] / script).records(tensor="gradient")
    assert set(rows["layer"]) == {f"model_{n}.{name}" for n in numbers for name in LAYERS[script]}
