"""samples/gpt.py has the bits of the C++ sample, is recorded, and can be resumed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import telens

PROJECT_ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TELENS_LIBRARY", PROJECT_ROOT / "build/lib/libtelens.so")).parents[1]
PYTHON_SAMPLE = [sys.executable, str(PROJECT_ROOT / "samples/gpt.py")]
CPP_SAMPLE = [str(BUILD / "bin/gpt")]
SMALL = ["--layers", "2", "--hidden", "32", "--heads", "2", "--sequence", "32", "--batch", "2"]
SMALL += ["--seed", "3", "--text-bytes", "100000", "--device", "cpu"]
CONFIG = """\
section:
  enabled: True
  layers: {layer_types: all}
  transformer_engine:
    LogTensorStats: {enabled: True, stats: [max, l2_norm], tensors: [activation, gradient]}
"""


def start(
    command: list[str], *options: object, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    packages = os.pathsep.join([str(BUILD / "python"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*command, *SMALL, *map(str, options)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": packages, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def run(command: list[str], *options: object, folder: Path | None = None) -> str:
    result = start(command, *options, folder=folder)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("recipe", ["delayed", "mxfp8", "block", "nvfp4", "bf16"])
def test_python_and_cpp_compute_the_same_bits(tmp_path, recipe):
    losses = {}
    for name, command in (("python", PYTHON_SAMPLE), ("cpp", CPP_SAMPLE)):
        file = tmp_path / name
        run(command, "--steps", 5, "--recipe", recipe, "--loss-file", file)
        losses[name] = file.read_text()
    assert losses["python"] == losses["cpp"]
    assert len(losses["python"].split()) == 5


@pytest.mark.parametrize("sample", [PYTHON_SAMPLE, CPP_SAMPLE])
def test_a_sample_that_can_record_nothing_says_so_and_trains(tmp_path, sample):
    config = tmp_path / "debug.yaml"
    config.write_text(CONFIG)
    (tmp_path / "a file").touch()
    printed = run(sample, "--steps", 1, "--config", config, "--log-dir", tmp_path / "a file")
    assert "nothing could be recorded in" in printed
    assert "bigram entropy of the text" in printed


def test_misspelled_option_suggests_a_similar_one():
    misspelt = start(PYTHON_SAMPLE, "--stps", 1)
    assert misspelt.returncode == 2
    assert "unknown option --stps (did you mean '--steps'?)" in misspelt.stderr


@pytest.mark.parametrize("sample", [PYTHON_SAMPLE, CPP_SAMPLE])
def test_a_run_without_a_log_dir_goes_to_the_folder_that_git_ignores(tmp_path, sample):
    (tmp_path / "debug.yaml").write_text(CONFIG)
    run(sample, "--steps", 1, "--config", "debug.yaml", folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"debug.yaml", "telens_runs"}
    assert "/telens_runs/" in (PROJECT_ROOT / ".gitignore").read_text().split()


def test_a_watched_run_is_recorded_and_computes_the_same_bits(tmp_path):
    config = tmp_path / "debug.yaml"
    config.write_text(CONFIG)
    plain = run(PYTHON_SAMPLE, "--steps", 4, "--loss-file", tmp_path / "plain")
    watched = run(
        PYTHON_SAMPLE,
        *("--steps", 4, "--loss-file", tmp_path / "watched"),
        *("--config", config, "--log-dir", tmp_path),
    )
    assert (tmp_path / "plain").read_text() == (tmp_path / "watched").read_text()
    assert "bigram entropy of the text" in plain
    assert f"\nrecorded in {tmp_path}" in watched
    run_file = telens.open_run(tmp_path)
    # 9 layers, 2 tensors, 2 statistics, 4 steps; counters are recorded in addition.
    assert set(run_file.names("layer")) == {
        "head",
        *(
            f"layers.{i}.{name}"
            for i in range(2)
            for name in (
                "self_attention.layernorm_linear_qkv",
                "self_attention.proj",
                "layernorm_mlp.fc1",
                "layernorm_mlp.fc2",
            )
        ),
    }
    assert len(run_file.records(statistic="l2_norm")) == 9 * 2 * 4
    assert len(run_file.losses) == 4


def test_a_resumed_run_computes_the_bits_of_an_uninterrupted_one(tmp_path):
    checkpoint = tmp_path / "checkpoint.pt"
    run(
        PYTHON_SAMPLE,
        *("--steps", 6, "--loss-file", tmp_path / "whole"),
        *("--save", checkpoint, "--save-at", 3),
    )
    run(PYTHON_SAMPLE, "--steps", 6, "--loss-file", tmp_path / "rest", "--resume", checkpoint)
    whole = (tmp_path / "whole").read_text().split()
    assert (tmp_path / "rest").read_text().split() == whole[3:]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--recipe", "fp7"), "invalid choice: 'fp7'"),
        (("--text", "/nowhere"), "too little text"),
        pytest.param(
            ("--device", "cuda"),
            "gpt: --device cuda: torch cannot use a GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_wrong_use_is_one_clear_line(options, complaint):
    result = start(PYTHON_SAMPLE, *options)
    assert result.returncode == (1 if "/nowhere" in options else 2)
    assert complaint in result.stderr.splitlines()[-1]


def test_run_that_learns_too_little_fails_if_requested():
    result = start(PYTHON_SAMPLE, "--steps", 2, "--below-bigrams", 0.1)
    assert result.returncode == 1
    assert "mean loss of the last 2 steps is -" in result.stderr
    assert "expected at least 0.1 (--below-bigrams)" in result.stderr
    assert result.stderr.count("\n") == 1
    run(PYTHON_SAMPLE, "--steps", 2, "--below-bigrams", -9)
