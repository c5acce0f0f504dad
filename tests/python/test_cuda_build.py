"""What a build with CUDA contains, read from the library itself: no GPU needed."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

# nvcc names machine code by architecture; the listing may leave out the suffix (sm_90a as sm_90).
MACHINE_CODE = {"Hopper": r"\.sm_90a?\.cubin", "Blackwell": r"\.sm_100[af]?\.cubin"}
PTX = r"\.(sm|compute)_90\.ptx"

# One kernel of every operation: a name that its .cu file alone has.
KERNELS = (
    "amax_kernel",
    "quantize_kernel",
    "quantize_transpose_kernel",
    "dequantize_kernel",
    "scale_from_amax_kernel",
    "update_windows_kernel",
    "statistics_kernel",
    "merge_statistics_kernel",
    "block_ranges_kernel",
    "exponent_histogram_kernel",
    "code_histogram_kernel",
    "normalize_kernel",
    "normalize_backward_kernel",
    "norm_parameter_gradients_kernel",
    "activate_kernel",
    "activate_backward_kernel",
    "quantize_lines_kernel",
    "quantize_squares_kernel",
    "dequantize_blocks_kernel",
    "quantize_nvfp4_kernel",
    "quantize_nvfp4_squares_kernel",
    "hadamard_kernel",
)


def has_cuda_kernels(library: Path) -> bool:
    sections = subprocess.run(
        ["readelf", "--section-headers", "--wide", str(library)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return ".nv_fatbin" in sections


def cuobjdump() -> str | None:
    """The toolkit's, or the one that the triton wheel carries."""
    found = shutil.which("cuobjdump")
    spec = importlib.util.find_spec("triton")
    if found or spec is None:
        return found
    carried = Path(spec.submodule_search_locations[0]) / "backends/nvidia/bin/cuobjdump"
    return str(carried) if carried.exists() else None


@pytest.fixture(scope="module")
def cuda_library(library_path: Path) -> Path:
    if not has_cuda_kernels(library_path):
        pytest.skip(f"{library_path} was built without CUDA (TELENS_CUDA=OFF)")
    return library_path


@pytest.fixture(scope="module")
def tool() -> str:
    found = cuobjdump()
    if found is None:
        pytest.skip("no cuobjdump, neither the toolkit's nor triton's: code objects not checked")
    return found


def test_library_has_machine_code_for_hopper_and_blackwell_and_ptx_for_newer_cards(
    cuda_library, tool
):
    def listed(option: str) -> str:
        return subprocess.run(
            [tool, option, str(cuda_library)], capture_output=True, text=True, check=True
        ).stdout

    elf = listed("--list-elf")
    for card, pattern in MACHINE_CODE.items():
        assert re.search(pattern, elf), f"no machine code for {card} in:\n{elf}"
    ptx = listed("--list-ptx")
    assert re.search(PTX, ptx), f"no PTX for compute_90 in:\n{ptx}"


def test_every_kernel_is_there_and_keeps_its_registers(cuda_library, tool):
    usage = subprocess.run(
        [tool, "--dump-resource-usage", "-arch", "sm_90a", str(cuda_library)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    functions = re.findall(r"Function (\S+):\s*\n\s*(REG:.*)", usage)
    for kernel in KERNELS:
        assert any(kernel in name for name, _ in functions), f"{kernel} is missing"
    spilled = [name for name, used in functions if "LOCAL:0" not in used]
    assert not spilled, f"local memory (register spills) in {spilled}"


def test_operators_of_the_cpu_have_cuda_kernels(cuda_library, telens_ops):
    """The statistics of block formats are left out, as docs/status.md says."""
    cpu_alone = {
        "accumulate_block_cast_statistics",
        "accumulate_what_if_statistics",
        "block_cast_errors",
        "block_copies_difference",
    }
    names = {
        name.removeprefix("telens::")
        for name in torch._C._dispatch_get_registrations_for_dispatch_key("CPU")
        if name.startswith("telens::")
    }
    on_cuda = {
        name.removeprefix("telens::")
        for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
        if name.startswith("telens::")
    }
    assert names, "the CPU's kernels are registered"
    assert names - on_cuda <= cpu_alone, "kernels for the CPU that CUDA lacks"
