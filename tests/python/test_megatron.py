"""Megatron-Core trains without changes on our layers with Transformer Engine's names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import report_missing_client

import telens

CLIENTS = Path(__file__).parent / "clients"
INSTALLED = Path(__file__).parents[2] / "build" / "clients"
# Version -> folder. The newer one demands Python 3.12; the parts used here run on 3.11, too.
VERSIONS = {"0.16.1": INSTALLED, "0.19.2": INSTALLED / "megatron-core-0.19.2"}
RECIPES = ("fp32", "delayed", "tensorwise", "mxfp8")
LAYERS = (
    "self_attention.linear_qkv",
    "self_attention.linear_proj",
    "mlp.linear_fc1",
    "mlp.linear_fc2",
)

CONFIG = """\
stats:
  enabled: True
  layers: {layer_types: all}
  transformer_engine:
    LogTensorStats: {enabled: True, tensors: [activation, weight, gradient], stats: [max], freq: 14}
"""

# Names for which Megatron-Core has an alternative, or that would change nothing.
MISSING = {
    "transformer_engine.pytorch.cpu_offload_v1",
    "transformer_engine.pytorch.fp8.FP8GlobalStateManager.quantization_state",
    "transformer_engine.pytorch.module._common",
    "transformer_engine.pytorch.module.layernorm_linear.general_gemm",
    "transformer_engine.pytorch.module.linear.general_gemm",
}
# The least number of names of a version that must resolve.
RESOLVED = {"0.16.1": 106, "0.19.2": 148}


@pytest.fixture(scope="module", params=VERSIONS)
def version(request) -> str:
    if not (VERSIONS[request.param] / "megatron").is_dir():
        report_missing_client("Megatron-Core")
    return request.param


def run(folder: Path, version: str, *arguments: str) -> str:
    packages = str(VERSIONS[version])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), packages]))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def alone(tmp_path_factory, version) -> tuple[dict, object]:
    """What the trainings in one process printed, and what the session recorded."""
    folder = tmp_path_factory.mktemp("megatron")
    (folder / "debug.yaml").write_text(CONFIG)
    watched = ["-m", "telens.run_as_te", "--config", "debug.yaml", "--log-dir", "logs"]
    printed = run(folder, version, *watched, str(CLIENTS / "megatron_client.py"), *RECIPES)
    return json.loads(printed), telens.open_run(folder / "logs").records()


@pytest.fixture(scope="module")
def divided(tmp_path_factory, version) -> dict:
    """What the trainings in two tensor-parallel processes printed."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "telens.run_as_te"]
    folder = tmp_path_factory.mktemp("megatron_tp")
    return json.loads(run(folder, version, *launch, str(CLIENTS / "megatron_client.py"), *RECIPES))


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_weight_of_a_gpt_model_moves(alone, recipe):
    found = alone[0][recipe]
    assert len(found["losses"]) == 15
    assert found["losses"][-1] < 0.9 * found["losses"][0]
    assert found["still"] == []


def test_fp8_trainings_follow_fp32_without_equaling_it(alone):
    losses = {recipe: alone[0][recipe]["losses"] for recipe in RECIPES}
    for recipe in RECIPES[1:]:
        assert losses[recipe] != losses["fp32"]
        assert losses[recipe] == pytest.approx(losses["fp32"], rel=0.02)


# With tensorwise scaling each rank's part of a weight has its own scale.
@pytest.mark.parametrize(
    ("recipe", "tolerance"),
    [("fp32", 1e-5), ("delayed", 2e-3), ("tensorwise", 2e-2), ("mxfp8", 2e-3)],
)
def test_two_tensor_parallel_ranks_match_a_single_rank(alone, divided, recipe, tolerance):
    assert divided[recipe]["still"] == []
    expected = alone[0][recipe]["losses"]
    assert divided[recipe]["losses"] == pytest.approx(expected, rel=tolerance)


def test_session_records_every_layer_of_every_model(alone):
    rows = alone[1]
    models = ["model", *(f"model_{number}" for number in range(2, len(RECIPES) + 1))]
    assert set(rows["layer"]) == {
        f"{model}.decoder.layers.{index}.{name}"
        for model in models
        for index in (1, 2)  # Megatron-Core counts from 1
        for name in LAYERS
    }


def test_names_that_megatron_core_uses_resolve(tmp_path, version):
    script = ["-m", "telens.run_as_te", str(CLIENTS / "names_used.py")]
    report = json.loads(run(tmp_path, version, *script, str(VERSIONS[version] / "megatron")))
    assert set(report["missing"]) <= MISSING
    # Names that a training needs must work; those that only raise are of fusible operations and of
    # graphs.
    parts = (".ops.", ".ep.", "cpp_extensions", "FP8GlobalStateManager", "GroupedTensor", "._")
    assert [each for each in report["raises"] if not any(part in each for part in parts)] == []
    assert len(report["resolved"]) >= RESOLVED[version]
