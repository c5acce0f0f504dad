"""What a machine has of what TELens needs on a GPU, and what is wrong with it, one line a fault."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

LEAST_TORCH = (2, 8)  # pyproject.toml says it too
LEAST_CAPABILITY = (8, 0)  # Ampere, as in core/kernels/cuda/device.cpp
# The oldest drivers that run programs of a major version of CUDA (NVIDIA, CUDA compatibility).
LEAST_DRIVER = {12: 525, 13: 580}


@dataclass
class Machine:
    """None, "" or empty where there is no such thing."""

    torch: str = ""
    torch_cuda: str | None = None  # the CUDA that torch was built with
    torch_error: str = ""  # why torch finds no GPU, or cannot be imported
    card: str = ""
    capability: tuple[int, int] = (0, 0)
    multiprocessors: int = 0
    driver: str = ""  # nvidia-smi's, also where torch cannot use it
    nvcc: str = ""
    nvcc_version: str = ""
    tools: dict[str, str] = field(default_factory=dict)  # their paths
    python: str = ""
    cores: int = 0


def output_of(*command: str) -> str:
    """What a program prints; nothing if it is not there or fails."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def find_nvcc() -> str:
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    candidates = [shutil.which("nvcc"), *(f"{home}/bin/nvcc" for home in homes if home)]
    return next((path for path in candidates if path and Path(path).exists()), "")


def read_torch(machine: Machine) -> None:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        machine.torch_error = str(error)
        return
    machine.torch, machine.torch_cuda = torch.__version__, torch.version.cuda
    try:
        torch.cuda.init()
        properties = torch.cuda.get_device_properties(0)
    except (RuntimeError, AssertionError) as error:
        machine.torch_error = str(error).splitlines()[0]
        return
    machine.card = properties.name
    machine.capability = (properties.major, properties.minor)
    machine.multiprocessors = properties.multi_processor_count


def read_machine() -> Machine:
    machine = Machine(python=sys.version.split()[0], cores=os.cpu_count() or 1)
    read_torch(machine)
    query = ("--query-gpu=driver_version", "--format=csv,noheader")
    machine.driver = output_of("nvidia-smi", *query).partition("\n")[0]
    machine.nvcc = find_nvcc()
    release = re.search(r"release ([\d.]+)", output_of(machine.nvcc, "--version"))
    machine.nvcc_version = release[1] if release else ""
    machine.tools = {name: shutil.which(name) or "" for name in ("cmake", "ninja")}
    return machine


def leading_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def torch_fault(machine: Machine) -> str | None:
    expected = "expected torch >= 2.8 built with CUDA: name a Python that has it (GPU_PYTHON=...)"
    if not machine.torch:
        return f"torch: {machine.torch_error or 'not installed'}; {expected}"
    if leading_numbers(machine.torch) < LEAST_TORCH:
        return f"torch: {machine.torch} is too old; {expected}"
    if machine.torch_cuda is None:
        return f"torch: {machine.torch} is built without CUDA; {expected}"
    return None


def card_fault(machine: Machine) -> str | None:
    if not machine.card:
        least = LEAST_DRIVER.get(leading_numbers(machine.torch_cuda or "0")[0], 0)
        if machine.driver and leading_numbers(machine.driver)[0] < least:
            return (
                f"driver: {machine.driver} is too old for CUDA {machine.torch_cuda} of torch; "
                f"expected {least} or newer: update the driver or take a torch built with an older "
                "CUDA"
            )
        why = machine.torch_error or "no reason given"
        return f"GPU: none that torch can use ({why}); expected one of compute capability >= 8.0"
    if machine.capability < LEAST_CAPABILITY:
        got = ".".join(map(str, machine.capability))
        return f"GPU: {machine.card} has compute capability {got}; expected 8.0 (Ampere) or newer"
    return None


def toolkit_fault(machine: Machine) -> str | None:
    wanted = leading_numbers(machine.torch_cuda or "")[:1]
    expected = f"expected CUDA {machine.torch_cuda or '13'}'s: install the toolkit or set CUDA_HOME"
    if not machine.nvcc:
        return f"nvcc: neither on the PATH nor in CUDA_HOME or /usr/local/cuda; {expected}"
    if wanted and leading_numbers(machine.nvcc_version)[:1] != wanted:
        return f"nvcc: {machine.nvcc} is of CUDA {machine.nvcc_version or '?'}; {expected}"
    return None


def tool_faults(machine: Machine) -> list[str]:
    return [
        f"{name}: not on the PATH; expected for the build: install it"
        for name, path in machine.tools.items()
        if not path
    ]


def faults_of_gpu(machine: Machine) -> list[str]:
    """Why nothing can run on a GPU here."""
    fault = torch_fault(machine) or card_fault(machine)
    return [fault] if fault else []


def faults_of_build(machine: Machine) -> list[str]:
    """Why nothing for a GPU can be built and run here."""
    return [
        *faults_of_gpu(machine),
        *filter(None, [toolkit_fault(machine)]),
        *tool_faults(machine),
    ]
