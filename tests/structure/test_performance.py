"""docs/performance.md has each row of benchmarks/gpu.py with its target, and does not flatter."""

import json
import re
import sys
from pathlib import Path

from test_status import NOT_RUN, gpu_results

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import profiled_kernels  # noqa: E402
from gpu_rows.groups import GROUPS, rows_of  # noqa: E402

CELLS = re.compile(r"^\| ([^|`]+) \| ([^|]+) \| ([^|]*peer's[^|]*) \| ([^|]+) \|$", re.MULTILINE)


def documented() -> dict[str, tuple[str, str, str]]:
    """Peer, target and measured of each row."""
    cells = CELLS.findall((ROOT / "docs/performance.md").read_text())
    return {name: (peer, target, measured) for name, peer, target, measured in cells}


def target_of(row) -> str:
    described = row.described()
    if described["target"] is None:
        return f"reported: share {described['value_is']}"
    return f"{described['target']} {described['value_is']}"


def test_the_page_has_the_rows_of_the_benchmarks_with_their_peers_and_targets():
    rows = {row.name: (row.peer, target_of(row)) for group in GROUPS for row in rows_of(group)}
    assert {name: cells[:2] for name, cells in documented().items()} == rows


def measured() -> dict[str, str]:
    """What committed results say of each row."""
    words = {True: ", met", False: ", **missed**", None: ""}
    cells: dict[str, list[str]] = {}
    for card, result in sorted(gpu_results().items()):
        for row in result["benchmarks"]:
            if row["outcome"] == "measured":
                cell = f"{card}: {row['value']:.3f}{words[row['met']]}"
                cells.setdefault(row["name"], []).append(cell)
    return {name: "; ".join(each) for name, each in cells.items()}


def test_measured_figures_are_those_of_committed_results():
    figures = measured()
    for name, (_, _, cell) in documented().items():
        assert cell == figures.get(name, NOT_RUN), name


# ---- distances of FP8 products, and profiles


def result(name: str):
    return json.loads((ROOT / f"benchmarks/results/{name}-nvidia-h100-80gb-hbm3.json").read_text())


def line_of_distances(name: str, wanted) -> str:
    """Of the worst of the rows, where a null is no distance."""
    found = [row for row in result("accumulator")["rows"] if wanted(row)]
    worst = [
        max(row[key] for row in found if row[key] is not None)
        for key in ("largest", "root of mean square")
    ]
    return f"| {name} | 2^{worst[0]:.1f} | 2^{worst[1]:.1f} |"


def test_distances_of_products_are_those_of_committed_results():
    page = (ROOT / "docs/performance.md").read_text().splitlines()
    in_blocks = ("1x128 by 128x128", "any 1x128 by any 128x128")

    def of_a_tensor(row, split):
        return row["product"] == "tensor" and row["split"] == split

    lines = {
        "a scale a tensor, fast accumulation": lambda row: of_a_tensor(row, split=False),
        "a scale a tensor, split accumulator": lambda row: of_a_tensor(row, split=True),
        "128-blocks": lambda row: row["product"] in in_blocks,
        "the worst of these, of normal data alone": lambda row: (
            row["product"] != "MXFP8" and row["spread"] == 0
        ),
        "MXFP8, emulated (BF16 operands, FP32 sums)": lambda row: row["product"] == "MXFP8",
    }
    for name, wanted in lines.items():
        assert line_of_distances(name, wanted) in page


# As Nsight Compute prints it.
PRINTED = """
  void telens::<unnamed>::quantize_kernel<telens::E8M0, 0>(telens::Arguments) (264, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    SM Frequency                    Ghz         1.59
    Executed Instructions          inst  269,978,507
    Waves Per SM                                0.50
    OPT   ALU is the highest-utilized pipeline (72.8%) based on elapsed cycles
    OPT   The memory access pattern for global stores to L1TEX might not be optimal. On average, only 4.0 of the 32
          bytes transmitted per sector are utilized by each thread.
    OPT   This kernel has uncoalesced global accesses resulting in a total of 524288 excessive sectors (4% of the total
  telens::<unnamed>::merge_kernel(telens::MergeArguments, const long *) (1, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    SM Frequency                    Ghz         1.58
"""  # noqa: E501


def test_profiles_are_extracted_kernel_by_kernel():
    assert profiled_kernels.profiles(PRINTED) == [
        {
            "kernel": "quantize_kernel",
            "blocks": 264,
            "threads": 256,
            "SM Frequency": {"value": 1.59, "unit": "Ghz"},
            "Executed Instructions": {"value": 269978507.0, "unit": "inst"},
            "Waves Per SM": {"value": 0.5, "unit": ""},
            "busiest pipeline": {"name": "ALU", "percent": 72.8},
            "used bytes of a stored sector": 4.0,
            "needless sectors": {"sectors": 524288, "percent": 4},
        },
        {
            "kernel": "merge_kernel",
            "blocks": 1,
            "threads": 128,
            "SM Frequency": {"value": 1.58, "unit": "Ghz"},
        },
    ]


def test_what_the_page_says_of_profiles_is_in_committed_results():
    dequantize, _, amax, nvfp4, with_fp8, _, _, merge = result("profiles")
    page = (ROOT / "docs/performance.md").read_text()

    def share(profile, name):
        return f"{profile[name]['value']:.0f} %"

    instructions = 32 * with_fp8["Executed Instructions"]["value"]  # a warp's are 32 threads'
    elements = profiled_kernels.ROWS * profiled_kernels.COLUMNS
    for words in (
        f"{share(with_fp8, 'Issue Slots Busy')} of the issue slots are busy and the memory "
        f"{share(with_fp8, 'DRAM Throughput')}; {instructions / elements:.1f} instructions",
        f"writes {dequantize['used bytes of a stored sector']:.0f} of a sector's 32 bytes, "
        f"and {dequantize['needless sectors']['percent']} % of the sectors",
        f"busy to {share(dequantize, 'L2 Cache Throughput')}, the memory to "
        f"{share(dequantize, 'DRAM Throughput')}",
        f"busy to {nvfp4['busiest pipeline']['percent']:.0f} %, the memory to "
        f"{share(nvfp4, 'DRAM Throughput')}",
        f"amax before it takes some {amax['Duration']['value']:.0f} us",
        f"one block, took some {merge['Duration']['value']:.0f} us",
    ):
        assert words in page
