"""The code of docs/paddle.md and the sample do what they say."""

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import telens

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("TELENS_COMMAND", ROOT / "build/bin/telens"))
SMALL = ["--layers", "1", "--hidden", "32", "--heads", "2", "--sequence", "32", "--batch", "2"]
SMALL += ["--seed", "3", "--text-bytes", "100000"]


def run(command, folder):
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_training_of_the_page_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/paddle.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    run(["-c", blocks[0]], tmp_path)


def sample(folder, *options):
    file = folder / "losses"
    command = [ROOT / "samples/gpt_paddle.py", *SMALL, "--loss-file", file, *options]
    run(command, folder)
    return file.read_text().split()


def test_a_watched_sample_has_the_same_losses(tmp_path):
    plain = sample(tmp_path, "--steps", 4)
    config = ROOT / "configs/log_all_statistics.yaml"
    watched = sample(tmp_path, "--steps", 4, "--config", config, "--log-dir", tmp_path / "run")
    assert plain == watched
    assert len(plain) == 4
    assert "model.layers.0.layernorm_mlp.fc1" in telens.open_run(tmp_path / "run").names("layer")


@pytest.mark.parametrize("recipe", ["delayed", "fp32"])
def test_resumed_sample_continues_with_the_same_losses(tmp_path, recipe):
    saved = tmp_path / "checkpoint"
    options = ["--steps", 4, "--recipe", recipe]
    whole = sample(tmp_path, *options, "--save", saved, "--save-at", 2)
    assert sample(tmp_path, *options, "--resume", saved) == whole[2:]


WATCHED = """
watched:
  enabled: True
  layers:
    layer_types: all
  transformer_engine:
    LogFp8TensorStats:
      enabled: True
      tensors: [activation, weight, gradient]
      stats: [underflows%, mse]
  telens:
    PrecisionLedger:
      enabled: True
"""


def test_the_command_answers_on_the_run_of_a_sample_that_learns(tmp_path):
    config = tmp_path / "watched.yaml"
    config.write_text(WATCHED)
    bits = sample(tmp_path, "--steps", 30, "--config", config, "--log-dir", tmp_path / "run")
    losses = [struct.unpack(">f", bytes.fromhex(each))[0] for each in bits]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])

    def ask(*words):
        done = subprocess.run([COMMAND, *words, tmp_path / "run"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    layers = ["self_attention.layernorm_qkv", "self_attention.proj", "layernorm_mlp.fc1"]
    layers = [f"model.layers.0.{each}" for each in [*layers, "layernorm_mlp.fc2"]] + ["model.head"]
    for words in (["stats"], ["ledger"]):
        table = ask(*words)
        assert all(layer in table for layer in layers), table
    rows = ask("ledger", "--format", "csv").splitlines()
    # Two operands of three GEMMs of each layer; the first layer's input needs a gradient, too.
    products = [row for row in rows[1:] if ",attention," not in row]
    assert len(products) == 2 * 3 * len(layers)
    assert all("under tensor scaling" in row for row in products)
    assert len(rows) - 1 - len(products) == 3  # query, key and value of the one attention
    page = ask("plot")
    assert "loss" in page
    assert "underflows%" in page
