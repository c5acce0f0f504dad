#!/usr/bin/env python3
"""Counts the instructions that the statistics kernel issues for each BF16 element on Hopper.

  benchmarks/sass.py [LIBRARY, object file or cubin]    default: build/lib/libtelens.so

A thread takes 32 elements in one round of its loop. What it issues for ordinary data is counted
along the shortest way round that goes through the loads and through the unrolled sums: shortest,
because everything beside it is for what ordinary data have not (special values, zeros, values
that a cast clips). Each cast adds the shortest way round its own loop. The two are divided by 32.
Needs cuobjdump (the CUDA toolkit's, or the one in the triton wheel), and no GPU.
"""

import argparse
import heapq
import itertools
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from cuda_binaries import find_cuobjdump
from sass_listing import ARCHITECTURE, Instruction, functions, instructions_of, listing_of

ROOT = Path(__file__).resolve().parents[1]
# core/formats: FloatFormat<FormatId::bf16, ...>, whose identifier is 4, as the compiler mangles it.
BF16_STATISTICS = re.compile(r"statistics_kernelI\w*FormatIdE4E")
# Per thread and round: kElementsOfThread in core/kernels/cuda/statistics/statistics.cuh.
ELEMENTS = 32
UNROLLED = 16  # at least so many fused multiply-adds has a block that sums a thread's elements


@dataclass
class Block:
    instructions: list[Instruction] = field(default_factory=list)
    next: list[int] = field(default_factory=list)  # addresses

    def count(self, *names: str) -> int:
        return sum(each.name.split(".")[0] in names for each in self.instructions)

    def loads(self) -> int:
        return sum(
            each.name.startswith(("LD.", "LDG.")) and ".128" in each.name
            for each in self.instructions
        )


def kernel(listing: str, name: re.Pattern) -> str:
    """The part of cuobjdump's listing that is about one kernel."""
    for mangled, text in functions(listing):
        if name.search(mangled):
            return text
    raise SystemExit(f"no kernel {name.pattern} in the listing for {ARCHITECTURE}")


def blocks_of(text: str) -> dict[int, Block]:
    """Basic blocks by address, with the addresses of those that may follow."""
    code = instructions_of(text)
    starts = {each.target for each in code if each.target is not None}
    starts |= {after.address for each, after in itertools.pairwise(code) if each.jumps}
    blocks: dict[int, Block] = {}
    block = Block()
    for each in code:
        if each.address in starts or not blocks:
            if block.instructions and not block.instructions[-1].always_leaves:
                block.next.append(each.address)
            block = blocks[each.address] = Block()
        block.instructions.append(each)
        if each.target is not None:
            block.next.append(each.target)
    return blocks


def shortest(blocks: dict[int, Block], start: int, end: int, without=()) -> list[int]:
    """The blocks after `start` up to `end`, by the fewest instructions; `end` may be `start`."""
    queue = [(0, [start])]
    done = set()
    while queue:
        length, path = heapq.heappop(queue)
        for after in blocks[path[-1]].next:
            if after == end:
                return [*path[1:], end]
            if after in done or after in without or after not in blocks:
                continue
            done.add(after)
            heapq.heappush(queue, (length + len(blocks[after].instructions), [*path, after]))
    raise SystemExit(f"no way from {start:#x} to {end:#x}: the kernel is not built as expected")


@dataclass
class Counted:
    base: Counter  # instructions of a round by name
    casts: list[Counter]  # a counter for each loop over casts, one a format


def instructions_on(blocks: dict[int, Block], path: list[int]) -> Counter:
    return Counter(
        each.name.split(".")[0] for address in path for each in blocks[address].instructions
    )


def count(text: str) -> Counted:
    blocks = blocks_of(text)
    unrolled = [at for at, block in blocks.items() if block.count("FFMA") >= UNROLLED]
    casts = [at for at in unrolled if blocks[at].count("FMUL") >= UNROLLED]  # they scale
    (sums,) = [at for at in unrolled if at not in casts]
    # The block that leads to the sums, among those with as many wide loads as 32 elements take.
    (loads,) = [
        at
        for at, block in blocks.items()
        if block.loads() >= ELEMENTS * 2 // 16 and block.count("VIMNMX", "VIMNMX3") >= UNROLLED
    ]
    way = shortest(blocks, loads, sums, casts) + shortest(blocks, sums, loads, casts)
    loops = [shortest(blocks, at, at, [loads]) for at in casts]
    return Counted(instructions_on(blocks, way), [instructions_on(blocks, loop) for loop in loops])


def described(name: str, counter: Counter) -> str:
    total = counter.total()
    most = ", ".join(f"{number} {each}" for each, number in counter.most_common(8))
    return f"{name}: {total} / {ELEMENTS} = {total / ELEMENTS:.1f} an element ({most}, ...)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = ROOT / "build/lib/libtelens.so"
    parser.add_argument("binary", type=Path, nargs="?", default=default)
    arguments = parser.parse_args()
    tool = find_cuobjdump()
    if tool is None:
        print("no cuobjdump: install the CUDA toolkit or triton", file=sys.stderr)
        return 2
    counted = count(kernel(listing_of(tool, arguments.binary), BF16_STATISTICS))
    print(described("base statistics", counted.base))
    for cast in counted.casts:
        print(described("each cast besides", cast))
    most = max((cast.total() for cast in counted.casts), default=0)
    total = counted.base.total() + most
    print(f"base and FP8 statistics: {total} / {ELEMENTS} = {total / ELEMENTS:.1f} an element")
    return 0


if __name__ == "__main__":
    sys.exit(main())
