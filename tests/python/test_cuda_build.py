"""What a build with CUDA contains, read from the library itself: no GPU needed.

Environment: TELENS_CUDA=ON              a library without CUDA is a failure, no reason to skip
             TELENS_CUDA_TARGETS=90a     what it was built for, if not for everything
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import sass_limits  # noqa: E402
from cuda_binaries import find_cuobjdump  # noqa: E402
from sass_listing import Usage, compiler_of, usage_of  # noqa: E402

# nvcc names machine code by architecture; the listing may leave out the suffix (sm_90a as sm_90).
MACHINE_CODE = {
    "80": r"\.sm_80\.cubin",
    "90a": r"\.sm_90a?\.cubin",
    "100f": r"\.sm_100[af]?\.cubin",
}
PTX = r"\.(sm|compute)_90\.ptx"

# For each operation, a kernel name that occurs in its .cu file only.
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
    "normalize_and_cast_kernel",
    "activate_and_cast_kernel",
    "activate_backward_and_cast_kernel",
    "quantize_lines_kernel",
    "quantize_squares_kernel",
    "dequantize_blocks_kernel",
    "quantize_nvfp4_kernel",
    "quantize_nvfp4_squares_kernel",
    "hadamard_kernel",
    "merge_kernel",
    "block_cast_statistics_kernel",
    "what_if_statistics_kernel",
    "block_cast_errors_kernel",
    "copies_difference_kernel",
    "tile_scales_kernel",
    "pad_scales_kernel",
    "transpose_codes_kernel",
)


def has_cuda_kernels(library: Path) -> bool:
    sections = subprocess.run(
        ["readelf", "--section-headers", "--wide", str(library)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return ".nv_fatbin" in sections


@pytest.fixture(scope="module")
def cuda_library(library_path: Path) -> Path:
    if not has_cuda_kernels(library_path):
        required = os.environ.get("TELENS_CUDA") == "ON"
        give_up = pytest.fail if required else pytest.skip
        give_up(f"{library_path} was built without CUDA (TELENS_CUDA=OFF)")
    return library_path


@pytest.fixture(scope="module")
def tool() -> str:
    found = find_cuobjdump()
    if found is None:
        pytest.skip("no cuobjdump, neither the toolkit's nor triton's: code objects not checked")
    return found


@pytest.fixture(scope="module")
def targets() -> list[str]:
    return os.environ.get("TELENS_CUDA_TARGETS", "80;90a;100f;90-virtual").split(";")


@pytest.fixture(scope="module")
def limited_library(cuda_library, tool, targets) -> Path:
    """A library whose machine code the limits are about."""
    if "90a" not in targets:
        pytest.skip(f"built for {targets}, limits are those of 90a")
    version = compiler_of(tool, cuda_library)
    if version != sass_limits.READ_WITH:
        pytest.skip(f"built by CUDA {version}'s nvcc, limits are those of {sass_limits.READ_WITH}")
    return cuda_library


def test_library_has_code_for_each_target_card(cuda_library, tool, targets):
    def listed(option: str) -> str:
        return subprocess.run(
            [tool, option, str(cuda_library)], capture_output=True, text=True, check=True
        ).stdout

    elf = listed("--list-elf")
    for target, pattern in MACHINE_CODE.items():
        if target in targets:
            assert re.search(pattern, elf), f"no machine code for {target} in:\n{elf}"
    if "90-virtual" in targets:
        ptx = listed("--list-ptx")
        assert re.search(PTX, ptx), f"no PTX for compute_90 in:\n{ptx}"


@pytest.fixture(scope="module")
def figures(limited_library, tool) -> dict[str, sass_limits.Code]:
    return sass_limits.measured(tool, [limited_library])


def test_every_kernel_is_there(cuda_library, tool, targets):
    if "90a" not in targets:
        pytest.skip(f"built for {targets}, and 90a is asked for")
    names = usage_of(tool, cuda_library)
    for kernel in KERNELS:
        assert any(kernel in name for name in names), f"{kernel} is missing"


def test_kernels_without_a_spill_limit_spill_nothing(limited_library, tool):
    assert not sass_limits.spills(usage_of(tool, limited_library))


def test_machine_code_of_hot_kernels_keeps_its_limits(figures):
    assert not sass_limits.faults_of(figures), "\n".join(sass_limits.table(figures))


def test_documented_figures_of_hot_kernels_match_machine_code(figures):
    page = (ROOT / "docs/internals/performance.md").read_text()
    for line in sass_limits.table(figures):
        assert line in page.splitlines(), "copy what benchmarks/sass_limits.py prints"


LISTING = """
        /*0010*/                   LDG.E.128 R4, desc[UR6][R2.64] ;
        /*0020*/                   {second} ;
        /*0030*/                   FADD R12, R4, R5 ;
        /*0040*/                   {third} ;
        /*0050*/              @!P0 BRA 0x10 ;
        /*0060*/                   CALL.REL.NOINC 0x200 ;
        /*0070*/                   EXIT ;
"""
LOAD = "LDG.E.128 R8, desc[UR6][R2.64+0x10]"


@pytest.mark.parametrize(
    ("second", "third", "registers", "stack", "fault"),
    [
        (LOAD, "NOP", 32, 0, None),
        ("NOP", LOAD, 32, 0, "1 wide loads before the first is used, not 2"),
        ("FADD R20, R4, R4", LOAD, 32, 0, "1 wide loads before"),
        (LOAD, "LDG.E.U16 R13, desc[UR6][R2.64]", 32, 0, "1 loads of 32 bits or less in loops"),
        (LOAD, "CALL.REL.NOINC 0x200", 32, 0, "1 calls in loops, more than 0"),
        (LOAD, "NOP", 33, 0, "33 registers a thread, more than 32"),
        (LOAD, "NOP", 32, 8, "8 bytes of stack, more than 0"),
    ],
)
def test_kernel_over_a_limit_is_named_with_its_figures(second, third, registers, stack, fault):
    limits = (sass_limits.Limit("kernel<BF16>", in_flight=2, registers=32),)
    text = LISTING.format(second=second, third=third)
    code = sass_limits.read_code(text, Usage(registers, stack))
    faults = sass_limits.faults_of({"kernel<BF16>": code}, limits)
    assert faults == [] if fault is None else fault in faults[0] and len(faults) == 1
    assert "no such kernel" in sass_limits.faults_of({}, limits)[0]


def test_spill_limits_apply_per_kernel():
    limits = (sass_limits.Limit("kernel", in_flight=2, registers=80, stack=24),)
    usage = {"kernel": Usage(80, 24), "other": Usage(40, 0)}
    assert sass_limits.spills(usage, limits) == []
    usage = {"kernel": Usage(80, 32), "other": Usage(40, 8)}
    assert sass_limits.spills(usage, limits) == [
        "kernel: 32 bytes of stack, more than 24",
        "other: 8 bytes of stack, more than 0",
    ]


def test_operators_of_the_cpu_have_cuda_kernels(cuda_library, telens_ops):
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
    # Attention with dropout runs in blocks only on the CPU (blocked_attention.h), and MXFP6 has no
    # CUDA kernels (ScalingScheme::has_cuda_kernels).
    only_on_cpu = {"keyed_dropout_", "quantize_mxfp6"}
    assert names - on_cuda == only_on_cpu, "kernels for the CPU that CUDA lacks"
