"""docs/performance.md has each row of benchmarks/gpu.py with its target, and does not flatter."""

import re
import sys
from pathlib import Path

from test_status import NOT_RUN, gpu_results

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

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
