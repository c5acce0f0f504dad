"""telens bisect on a real training, and the environment variables that configure its runs."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch
from debug_helpers import logging_of, train

import telens
import telens.debug as debug
import telens.pytorch as te

TRAINING = pathlib.Path(__file__).with_name("bisected_training.py")


def test_the_tensor_that_a_training_fails_for_is_found(build_folder, tmp_path):
    command = [
        build_folder / "bin/telens", "bisect", "--dir", tmp_path / "search",
        "--", sys.executable, TRAINING,
    ]  # fmt: skip
    answer = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=900, cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    # The candidates come from the ledger of the first run.
    assert re.search(r"run   2  passed  3 layers \(9 GEMMs\) in high precision", answer.stdout)
    assert re.search(r"^narrow +fprop +activation +run 1: exit code 1$", answer.stdout, re.M)
    config = (tmp_path / "search/high_precision.yaml").read_text()
    assert 'exact_layer_names:\n      - "narrow"\n' in config
    assert "DisableFP8GEMM: {enabled: True, gemms: [fprop]}" in config
    assert not (tmp_path / "unused").exists(), "a run recorded where the program says"


def test_telens_config_takes_the_place_of_the_programs_own(monkeypatch, tmp_path):
    config = tmp_path / "other.yaml"
    config.write_text(
        "s:\n  enabled: True\n  layers: {layer_types: [all]}\n  transformer_engine:\n"
        "    LogTensorStats: {enabled: True, tensors: [weight], stats: [std]}\n"
    )
    monkeypatch.setenv("TELENS_CONFIG", str(config))
    monkeypatch.setenv("TELENS_LOG_DIR", str(tmp_path / "there"))
    with debug.session(logging_of(["activation"], ["max"]), log_dir=tmp_path / "here"):
        train(te.Linear(16, 16, device="cpu"), torch.ones(16, 16))
    assert not (tmp_path / "here").exists()
    run = telens.open_run(str(tmp_path / "there"))
    rows = run.records()
    assert "std" in set(rows["statistic"])
    assert set(rows["tensor"]) == {"weight"}


def test_empty_variables_are_none(monkeypatch, tmp_path):
    monkeypatch.setenv("TELENS_CONFIG", "")
    monkeypatch.setenv("TELENS_LOG_DIR", "")
    with debug.session(log_dir=tmp_path / "here"):
        pass
    assert (tmp_path / "here/telens").is_dir()


def test_a_missing_file_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("TELENS_CONFIG", str(tmp_path / "missing.yaml"))
    with pytest.raises(telens.ConfigError, match=r"missing\.yaml' cannot be read"):
        debug.initialize(log_dir=tmp_path)
