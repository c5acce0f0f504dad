"""What a benchmark report says of rows that miss their target."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from report import Report, Row, at_least

ROWS = [
    Row("fast", 5, "x", at_least(4), if_missed="never said"),
    Row("slow", 3, "x", at_least(4), if_missed="memory is slow"),
    Row("riddle", 3, "x", at_least(4)),
    Row("free", 3, "x", None, if_missed="never said"),
]


def test_a_missed_row_carries_its_reason_in_table_and_json():
    table = Report(quick=False, rows=ROWS).table()
    assert "missed: slow: memory is slow" in table
    assert "missed: riddle: unknown" in table
    assert "never said" not in table
    reasons = {row.name: row.as_json()["reason"] for row in ROWS}
    assert reasons["slow"] == "memory is slow"
    assert reasons["fast"] == reasons["free"] == ""


def test_a_quick_report_judges_nothing():
    assert "missed" not in Report(quick=True, rows=ROWS).table().lower()
