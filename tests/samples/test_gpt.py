"""The sample trainings keep the promises: watching changes no bit, FP8 learns as BF16 does, a
resumed run is the uninterrupted one, and the run file holds what was asked for."""

import os
import re
import struct
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("TELENS_GPT", ROOT / "build/bin/gpt"))
COMMAND = Path(os.environ.get("TELENS_COMMAND", ROOT / "build/bin/telens"))
# A model small enough for seconds: two layers have nine linear layers with the head.
SIZES = {"layers": 2, "hidden": 64, "heads": 2, "sequence": 32, "batch": 8, "text-bytes": 200000}
SMALL = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]
LINEAR_LAYERS = 2 * 4 + 1


def train(folder: Path, *arguments: str, name: str = "run") -> tuple[list[str], str]:
    """Runs the sample; returns the hexadecimal losses and what it printed."""
    losses = folder / f"{name}.losses"
    command = [str(PROGRAM), *SMALL, "--loss-file", str(losses), "--log-dir", str(folder / name)]
    result = subprocess.run(
        [*command, *arguments],
        # A second thread only waits in a model this small.
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return losses.read_text().split(), result.stdout


def number(bits: str) -> float:
    return struct.unpack(">f", bytes.fromhex(bits))[0]


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> Path:
    """A configuration with every observing feature on all tensors of all layers."""
    path = tmp_path_factory.mktemp("config") / "everything.yaml"
    path.write_text(
        """
everything:
  enabled: True
  layers: {layer_types: [all]}
  transformer_engine:
    LogTensorStats:
      enabled: True
      tensors: [activation, weight, gradient, output, wgrad, dgrad]
      stats: [min, max, mean, std, l1_norm, l2_norm, cur_amax, dynamic_range]
    LogFp8TensorStats:
      enabled: True
      tensors: [activation, weight, gradient]
      stats: [underflows%, overflows%, mse, scale_inv_min, scale_inv_max]
"""
    )
    return path


@pytest.mark.parametrize("recipe", ["delayed", "current", "mxfp8", "block", "nvfp4", "bf16"])
def test_watching_everything_changes_no_bit_of_the_losses(tmp_path, everything, recipe):
    steps = ("--steps", "6", "--recipe", recipe)
    plain, _ = train(tmp_path, *steps, name="plain")
    watched, _ = train(tmp_path, *steps, "--config", str(everything), name="watched")
    assert len(plain) == 6
    assert watched == plain
    shown = subprocess.run(
        [str(COMMAND), "stats", str(tmp_path / "watched"), "--format", "csv"],
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    rows = shown.stdout.splitlines()
    assert len(rows) > LINEAR_LAYERS * 5, "the session recorded next to nothing"


def test_each_linear_layer_runs_three_fp8_gemms_a_step(tmp_path):
    _, printed = train(tmp_path, "--steps", "4", "--recipe", "delayed")
    quantized, plain = map(int, re.search(r"(\d+) in FP8, (\d+) in high", printed).groups())
    assert (quantized, plain) == (LINEAR_LAYERS * 3 * 4, 0)
    _, printed = train(tmp_path, "--steps", "4", "--recipe", "bf16")
    quantized, plain = map(int, re.search(r"(\d+) in FP8, (\d+) in high", printed).groups())
    assert (quantized, plain) == (0, LINEAR_LAYERS * 3 * 4)


def test_fp8_learns_as_bf16_does_and_is_not_bf16(tmp_path):
    last = {}
    # At the sample's own learning rate two seeds differ by more than 1 %, and so would two recipes.
    common = ("--steps", "300", "--learning-rate", "1e-3")
    for recipe in ("delayed", "bf16"):
        losses, _ = train(tmp_path, *common, "--recipe", recipe, name=recipe)
        last[recipe] = sum(map(number, losses[-50:])) / 50
        last[recipe + " bits"] = losses
    assert last["delayed"] == pytest.approx(last["bf16"], rel=0.01)
    assert last["delayed bits"] != last["bf16 bits"]
    assert last["bf16"] < number(last["bf16 bits"][0]) - 1, "it learnt nothing"


@pytest.mark.parametrize("recipe", ["mxfp8", "block", "nvfp4"])
def test_each_block_recipe_learns_in_its_own_gemms(tmp_path, recipe):
    losses, printed = train(tmp_path, "--steps", "100", "--recipe", recipe)
    quantized, plain = map(int, re.search(r"(\d+) in FP8, (\d+) in high", printed).groups())
    assert (quantized, plain) == (LINEAR_LAYERS * 3 * 100, 0)
    assert sum(map(number, losses[-20:])) / 20 < number(losses[0]) - 1.5


@pytest.mark.parametrize("recipe", ["delayed", "bf16"])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, recipe):
    common = ("--steps", "10", "--recipe", recipe)
    checkpoint = str(tmp_path / "checkpoint")
    whole, _ = train(tmp_path, *common, "--save", checkpoint, "--save-at", "4", name="whole")
    resumed, _ = train(tmp_path, *common, "--resume", checkpoint, name="resumed")
    assert len(resumed) == 6
    assert resumed == whole[4:]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--recipe", "fp4"], "--recipe"),
        (["--text", "/nowhere"], "/nowhere is not a folder; name one with text files"),
        (["--text", str(Path(__file__).parents[1] / "mutants")], "with --text FOLDER"),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--hidden", "60"], "dim is 15; expected an even number"),
    ],
)
def test_wrong_use_is_one_clear_error(arguments, said):
    result = subprocess.run(
        [str(PROGRAM), "--text-bytes", "200000", "--steps", "1", *arguments],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert said in result.stderr
    assert "terminate" not in result.stderr
