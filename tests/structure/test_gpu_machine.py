"""What `make gpu-check` says, one line a fault, on a machine on which it cannot run."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_machine  # noqa: E402
from gpu_machine import Machine, faults_of_build, faults_of_gpu  # noqa: E402

GOOD = Machine(
    torch="2.11.0+cu130",
    torch_cuda="13.0",
    card="NVIDIA H200",
    capability=(9, 0),
    multiprocessors=132,
    driver="580.159.04",
    nvcc="cuda/bin/nvcc",
    nvcc_version="13.0",
    tools={"cmake": "bin/cmake", "ninja": "bin/ninja"},
)
NO_GPU = {"card": "", "capability": (0, 0), "torch_error": "No CUDA GPUs are available"}


def test_a_machine_that_has_everything_has_no_fault():
    assert faults_of_build(GOOD) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"torch": "", "torch_error": "No module named 'torch'"},
            "torch: No module named 'torch'; expected torch >= 2.8 built with CUDA: name a Python "
            "that has it (GPU_PYTHON=...)",
        ),
        ({"torch": "2.7.1+cu126"}, "torch: 2.7.1+cu126 is too old; expected torch >= 2.8"),
        ({"torch": "2.11.0+cpu", "torch_cuda": None}, "torch: 2.11.0+cpu is built without CUDA"),
        (
            {**NO_GPU, "driver": ""},
            "GPU: none that torch can use (No CUDA GPUs are available); expected one of compute "
            "capability >= 9.0",
        ),
        (
            {**NO_GPU, "driver": "535.104.05"},
            "driver: 535.104.05 is too old for CUDA 13.0 of torch; expected 580 or newer",
        ),
        (
            {"card": "NVIDIA A100", "capability": (8, 0)},
            "GPU: NVIDIA A100 has compute capability 8.0; expected 9.0 (Hopper) or newer",
        ),
        ({"nvcc": "", "nvcc_version": ""}, "nvcc: neither on the PATH nor in CUDA_HOME"),
        ({"nvcc_version": "12.4"}, "nvcc: cuda/bin/nvcc is of CUDA 12.4; expected CUDA 13.0's"),
        ({"tools": {"cmake": "bin/cmake", "ninja": ""}}, "ninja: not on the PATH"),
    ],
)
def test_each_fault_is_one_line_that_says_what_was_expected(change, fault):
    (line,) = faults_of_build(replace(GOOD, **change))
    assert line.startswith(fault)
    assert "expected" in line
    assert "\n" not in line


def test_timing_needs_no_compiler():
    assert faults_of_gpu(replace(GOOD, nvcc="", tools={"cmake": "", "ninja": ""})) == []


def test_a_newer_card_and_torch_are_taken():
    newer = replace(GOOD, card="NVIDIA B200", capability=(10, 0), torch="2.12.1+cu131")
    assert faults_of_build(replace(newer, torch_cuda="13.1", nvcc_version="13.2")) == []


def test_the_machine_is_read_from_its_own_programs(tmp_path, monkeypatch):
    for name, printed in (
        ("nvidia-smi", "535.104.05"),
        ("nvcc", "Cuda compilation tools, release 12.4, V12.4.131"),
        ("cmake", ""),
    ):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho '{printed}'\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin{os.pathsep}/usr/bin")
    machine = gpu_machine.read_machine()
    assert machine.driver == "535.104.05"
    assert machine.nvcc == str(tmp_path / "nvcc")
    assert machine.nvcc_version == "12.4"
    assert machine.tools["cmake"] == str(tmp_path / "cmake")


@pytest.mark.parametrize("program", ["gpu_check.py", "gpu.py"])
def test_a_machine_without_a_gpu_exits_with_2_and_its_faults(program, tmp_path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(ROOT / "benchmarks" / program), "--out", str(tmp_path / "out")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 2, result.stderr
    assert "GPU: none that torch can use" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()
