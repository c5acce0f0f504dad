#!/usr/bin/env python3
"""What the machine code of each hot kernel may take, and what it takes.

  benchmarks/sass_limits.py [LIBRARY, object file or cubin ...]    default: build/lib/libtelens.so

No GPU is needed: figures are read from the disassembly for sm_90a. Exits with 1 if a kernel is
behind a limit, or spills registers and has none that lets it. Limits are those of one version of
nvcc; of another's code the table alone is printed. Needs cuobjdump (the CUDA toolkit's, or the one
in the triton wheel).
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cuda_binaries import find_cuobjdump
from sass_listing import (
    ARCHITECTURE,
    Instruction,
    Usage,
    compiler_of,
    functions,
    instructions_of,
    listing_of,
    readable,
    usage_of,
)

ROOT = Path(__file__).resolve().parents[1]
WIDE = 2  # registers that a wide load fills at least: 8 bytes


@dataclass(frozen=True)
class Code:
    """What a kernel's machine code was found to be."""

    in_flight: int  # the most wide loads from global memory before the first of them is used
    narrow_loads: int  # loads of 32 bits or less from global memory, in loops
    calls: int  # function calls in loops: divisions and the like
    registers: int
    stack: int  # bytes: what is spilled
    loop: int  # instructions of the longest loop, all ways through it


@dataclass(frozen=True)
class Limit:
    """Of a kernel whose name reads so in the listing."""

    kernel: str
    in_flight: int  # at least
    registers: int  # at most, as of all that follow
    narrow_loads: int = 0
    calls: int = 0
    stack: int = 0

    def faults(self, code: Code) -> Iterator[str]:
        if code.in_flight < self.in_flight:
            yield f"{code.in_flight} wide loads before the first is used, not {self.in_flight}"
        for what, words in WORDS.items():
            got, most = getattr(code, what), getattr(self, what)
            if got > most:
                yield f"{got} {words}, more than {most}"


WORDS = {
    "registers": "registers a thread",
    "narrow_loads": "loads of 32 bits or less in loops",
    "calls": "calls in loops",
    "stack": "bytes of stack",
}


def in_flight(code: list[Instruction]) -> int:
    """Loads come back in the order in which they were sent: the use of one waits for all before."""
    waiting: list[set[int]] = []
    most = 0
    for each in code:
        registers = each.registers
        wide = each.loads_words >= WIDE
        written = set(range(registers[0], registers[0] + each.loads_words)) if wide else set()
        # A load's address takes two registers; an instruction waits for whatever else it names.
        used = set(registers[1:]) | {at + 1 for at in registers[1:]} if wide else set(registers)
        last = max((i for i, load in enumerate(waiting) if load & (used | written)), default=-1)
        waiting = waiting[last + 1 :]
        if wide:
            waiting.append(written)
            most = max(most, len(waiting))
        if each.always_leaves:
            waiting = []
    return most


def loops(code: list[Instruction]) -> list[tuple[int, int]]:
    """First and last addresses of what a jump backwards repeats."""
    return [
        (each.target, each.address)
        for each in code
        if each.target is not None and each.target < each.address
    ]


def read_code(text: str, usage: Usage) -> Code:
    code = instructions_of(text)
    spans = loops(code)
    repeated = [
        each for each in code if any(first <= each.address <= last for first, last in spans)
    ]
    longest = max(
        (sum(first <= each.address <= last for each in code) for first, last in spans), default=0
    )
    return Code(
        in_flight(code),
        sum(0 < each.loads_words < WIDE for each in repeated),
        sum(each.name.startswith("CALL") for each in repeated),
        usage.registers,
        usage.stack,
        longest,
    )


# The nvcc whose machine code the limits were read from: another one allots registers otherwise.
READ_WITH = "13.0"

# A kernel has blocks_with(registers) blocks of 256 threads on a multiprocessor (thread.cuh): 8 with
# 32, 6 with 40, 5 with 48, 4 with 64, 3 with 80, 2 with 128.
LIMITS = (
    # One element a time are the last few of a tensor.
    Limit("quantize_kernel<BF16, E4M3, 8>", 3, 32, narrow_loads=1),
    Limit("amax_kernel<BF16, 8, (NanInMaximum)0>", 4, 32, narrow_loads=1),
    Limit("dequantize_kernel<E4M3, BF16, 8>", 2, 40, narrow_loads=1),
    Limit("quantize_transpose_kernel<BF16, E4M3>", 8, 128),
    # Calls for a row alone: its sums by its length and its mean by its unit, in one unit or the
    # other, and the root.
    Limit("normalize_kernel<BF16, 8>", 4, 48, calls=9),
    # mean and rstd of a row.
    Limit("normalize_backward_kernel<BF16, 8>", 4, 48, narrow_loads=2, calls=2),
    # Half of what is in flight where the activation is not gated.
    Limit("activate_kernel<BF16, SigmoidWeighted<SiluCoefficients>, 8>", 4, 64),
    Limit("activate_kernel<BF16, SigmoidWeighted<GeluCoefficients>, 8>", 4, 64),
    Limit("activate_backward_kernel<BF16, SigmoidWeighted<SiluCoefficients>, 8>", 3, 64),
    # mean and rstd of 4 rows, twice.
    Limit("normalize_and_cast_kernel<BF16>", 8, 128, narrow_loads=16),
    Limit("activate_and_cast_kernel<BF16, SigmoidWeighted<SiluCoefficients>>", 8, 80),
    Limit("activate_backward_and_cast_kernel<BF16, SigmoidWeighted<SiluCoefficients>>", 12, 128),
    Limit("quantize_lines_kernel<BF16, Mxfp8Scaling<E4M3>, true>", 4, 64),
    Limit("quantize_squares_kernel<BF16, Mxfp8Scaling<E4M3>, true>", 4, 64),
    # Divisions that make the scale of each block.
    Limit("quantize_lines_kernel<BF16, Fp8BlockScaling<E4M3>, true>", 8, 80, calls=20),
    Limit("quantize_squares_kernel<BF16, Fp8BlockScaling<E4M3>, true>", 8, 64, calls=2),
    # The scale of the tensor, or of each row, is stored in a loop of its own.
    Limit("quantize_nvfp4_kernel<BF16, true, false, false>", 4, 64, narrow_loads=2, calls=9),
    # The compiler aims at 64 registers and spills one of a kernel that also draws at random.
    Limit(
        "quantize_nvfp4_kernel<FP16, true, true, false>", 4, 64, narrow_loads=2, calls=9, stack=8
    ),
    Limit("quantize_nvfp4_squares_kernel<BF16, true, false>", 4, 64, calls=1),
    # Not tuned: a thread reads a square element by element, twice, and keeps its codes and errors
    # under two scales in memory of its own.
    Limit(
        "four_over_six_kernel<BF16, (FourOverSixBlocks)2>",
        0,
        64,
        narrow_loads=48,
        calls=26,
        stack=400,
    ),
    Limit(
        "four_over_six_kernel<FP16, (FourOverSixBlocks)2>",
        0,
        64,
        narrow_loads=48,
        calls=26,
        stack=400,
    ),
    Limit(
        "four_over_six_kernel<FP32, (FourOverSixBlocks)2>",
        0,
        64,
        narrow_loads=48,
        calls=26,
        stack=400,
    ),
    Limit("what_if_statistics_kernel<BF16, true>", 8, 128, calls=5),
    # Its 80 registers are what three blocks a multiprocessor leave; some of what it keeps from
    # round to round of its loop is spilled. Single elements are read, and divisions made, of what
    # is not ordinary data.
    Limit("statistics_kernel<BF16>", 4, 80, narrow_loads=46, calls=13, stack=24),
    Limit("statistics_kernel<FP16>", 4, 80, narrow_loads=96, calls=13, stack=32),
    Limit("statistics_kernel<FP32>", 4, 80, narrow_loads=94, calls=13, stack=104),
)


def measured(
    tool: str, binaries: list[Path], limits: tuple[Limit, ...] = LIMITS
) -> dict[str, Code]:
    """By the names of the limits' kernels, in their order; one that is not there is left out."""
    wanted = {limit.kernel: None for limit in limits}
    found: dict[str, Code] = {}
    for binary in binaries:
        usage = usage_of(tool, binary)
        listed = dict(functions(listing_of(tool, binary)))
        for mangled, name in zip(listed, readable(list(listed)), strict=True):
            if name in wanted:
                found[name] = read_code(listed[mangled], usage[mangled])
    return {name: found[name] for name in wanted if name in found}


def spills(usage: dict[str, Usage], limits: tuple[Limit, ...] = LIMITS) -> list[str]:
    """Kernels, by mangled name, of which more is spilled than a limit of their own lets be; without
    one nothing may be."""
    allowed = {limit.kernel: limit.stack for limit in limits}
    return [
        f"{name}: {used.stack} bytes of stack, more than {allowed.get(name, 0)}"
        for name, used in zip(readable(list(usage)), usage.values(), strict=True)
        if used.stack > allowed.get(name, 0)
    ]


def faults_of(found: dict[str, Code], limits: tuple[Limit, ...] = LIMITS) -> list[str]:
    faults = []
    for limit in limits:
        if limit.kernel not in found:
            faults.append(f"{limit.kernel}: no such kernel for {ARCHITECTURE}")
            continue
        faults += [f"{limit.kernel}: {fault}" for fault in limit.faults(found[limit.kernel])]
    return faults


def table(found: dict[str, Code]) -> Iterator[str]:
    yield "| kernel | in flight | registers | stack | loads of 32 bits | calls | instructions |"
    yield "|---|---|---|---|---|---|---|"
    for name, code in found.items():
        figures = (code.in_flight, code.registers, code.stack)
        figures += (code.narrow_loads, code.calls, code.loop)
        yield f"| `{name}` | {' | '.join(map(str, figures))} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = ROOT / "build/lib/libtelens.so"
    parser.add_argument("binaries", type=Path, nargs="*", default=[default])
    arguments = parser.parse_args()
    tool = find_cuobjdump()
    if tool is None:
        print("no cuobjdump: install the CUDA toolkit or triton", file=sys.stderr)
        return 2
    found = measured(tool, arguments.binaries)
    print("\n".join(table(found)))
    others = {compiler_of(tool, binary) for binary in arguments.binaries} - {READ_WITH}
    if others:
        made = ", ".join(version or "an unknown version" for version in sorted(others))
        print(f"limits are of CUDA {READ_WITH}'s nvcc; this is code of {made}", file=sys.stderr)
        return 0
    faults = faults_of(found)
    for binary in arguments.binaries:
        faults += spills(usage_of(tool, binary))
    print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
