"""Counting instructions in a disassembly: which way round the loop is counted."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from sass import BF16_STATISTICS, blocks_of, count, kernel, shortest

NAME = "_ZN6telens4cuda17statistics_kernelINS_11FloatFormatILNS_8FormatIdE4EtLi8ELi7EE"


def listing(*instructions: str) -> str:
    """As cuobjdump prints it: each instruction 16 bytes on, its code in two lines."""
    lines = [
        f"        /*{16 * i:04x}*/                   {text} ;      /* 0x0000000203047221 */\n"
        "                                           /* 0x000fca0000000000 */"
        for i, text in enumerate(instructions)
    ]
    return "\n".join(lines) + "\n"


# 16 bytes each: the address of instruction i is 16 * i, of a label that of what stands after it.
LOADS = ["LDG.E.128 R4, desc[UR4][R2.64]"] * 4 + ["VIMNMX3 R1, R1, R2, R3"] * 16
SUMS = ["FFMA R1, R2, R2, R1"] * 32
CAST = ["FMUL R1, R2, R3"] * 16 + ["FFMA R1, R2, R2, R1"] * 32


def program() -> str:
    code = ["S2R R0, SR_TID.X", *LOADS]
    code += [f"@P0 BRA {16 * (len(code) + 2):#x}", "POPC R1, R1"]  # counts zeros, if there are any
    code += [*SUMS]
    to_casts = len(code) + 1
    code += [f"@!P1 BRA {16 * (to_casts + 1):#x}", f"BRA {16 * (to_casts + 1 + len(CAST) + 1):#x}"]
    cast = len(code)
    code += [*CAST, f"@P2 BRA {16 * cast:#x}"]
    code += [f"@P3 BRA {16 * 1:#x}", "EXIT"]
    return listing(*code)


def test_a_round_is_counted_by_the_shortest_way_through_loads_and_sums():
    counted = count(program())
    # loads, the jump over POPC, sums, the two jumps past the casts, and the jump back
    assert counted.base.total() == 20 + 1 + 32 + 1 + 1 + 1
    assert counted.base["FFMA"] == 32
    assert counted.base["POPC"] == 0


def test_each_cast_is_counted_by_its_own_loop():
    (cast,) = count(program()).casts
    assert cast.total() == 16 + 32 + 1
    assert cast["FMUL"] == 16


def test_a_conditional_jump_goes_both_ways_and_an_unconditional_one_does_not():
    blocks = blocks_of(listing("@P0 BRA 0x20", "NOP", "BRA P1, 0x0", "BRA 0x10", "EXIT"))
    assert {at: sorted(block.next) for at, block in blocks.items()} == {
        0x00: [0x10, 0x20],
        0x10: [0x20],
        0x20: [0x00, 0x30],
        0x30: [0x10],
        0x40: [],
    }
    assert shortest(blocks, 0x20, 0x20) == [0x00, 0x20]


def test_the_kernel_is_found_by_its_format():
    other = NAME.replace("FormatIdE4E", "FormatIdE6E")
    text = f"x\n\t\tFunction : {other}\n\tFP32\n\t\tFunction : {NAME}v\n\tBF16\n"
    assert "BF16" in kernel(text, BF16_STATISTICS)
    with pytest.raises(SystemExit, match="no kernel"):
        kernel(f"\t\tFunction : {other}\n", BF16_STATISTICS)
