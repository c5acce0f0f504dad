"""docs/internals/performance.md lists each row of benchmarks/gpu.py, with its baseline and
target.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu_rows.groups import GROUPS, rows_of  # noqa: E402

CELLS = re.compile(r"^\| ([^|`]+) \| ([^|]+) \| ([^|]*peer's[^|]*) \| [^|]+ \|$", re.MULTILINE)


def documented() -> dict[str, tuple[str, str]]:
    """Baseline and target of each row."""
    cells = CELLS.findall((ROOT / "docs/internals/performance.md").read_text())
    return {name: (peer, target) for name, peer, target in cells}


def target_of(row) -> str:
    described = row.described()
    if described["target"] is None:
        return f"reported: share {described['value_is']}"
    return f"{described['target']} {described['value_is']}"


def test_page_has_every_row_with_its_peer_and_target():
    rows = {row.name: (row.peer, target_of(row)) for group in GROUPS for row in rows_of(group)}
    assert documented() == rows
