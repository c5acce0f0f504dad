"""What a benchmark report says about rows that miss their target."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import report
from report import Journal, Report, Row, at_least

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


def test_single_rows_replace_old_rows_and_name_their_commit(tmp_path):
    whole = Report(quick=False, rows=ROWS[:2], not_run={"riddle": "no such program"})
    path = whole.write(tmp_path)
    before = json.loads(path.read_text())
    again = [Row("slow", 4, "x", at_least(4)), Row("riddle", 5, "x", None)]
    assert Report(quick=False, rows=again).update(tmp_path) == path
    after = json.loads(path.read_text())
    assert [(row["name"], row["value"]) for row in after["rows"]] == [
        ("fast", 5),
        ("slow", 4),
        ("riddle", 5),
    ]
    assert ["measured" in row for row in after["rows"]] == [False, True, True]
    assert after["rows"][1]["measured"]["commit"] == before["commit"]
    assert after["not_run"] == {}
    assert {key: after[key] for key in ("commit", "time")} == {
        key: before[key] for key in ("commit", "time")
    }


def test_single_rows_create_a_missing_file(tmp_path):
    path = Report(quick=False, rows=ROWS[:1], not_run={"slow": "no"}).update(tmp_path)
    document = json.loads(path.read_text())
    assert [row["name"] for row in document["rows"]] == ["fast"]
    assert document["not_run"] == {"slow": "no"}


def journal_of(tmp_path, monkeypatch, commit="abc"):
    monkeypatch.setattr(report, "describe_commit", lambda: commit)
    return Journal(tmp_path / "rows.jsonl", rounds=20)


def test_an_interrupted_run_continues_with_its_rows(tmp_path, monkeypatch):
    first = journal_of(tmp_path, monkeypatch)
    first.add("one", ROWS[:2], {})
    first.add("two", [], {"absent": "no such program"})
    with first.path.open("a") as file:
        file.write('{"group": "three", "rows": [{"na')  # killed while it wrote
    again = journal_of(tmp_path, monkeypatch)
    again.resume()
    assert again.groups == {"one": (ROWS[:2], {}), "two": ([], {"absent": "no such program"})}
    again.add("three", ROWS[2:], {})
    last = journal_of(tmp_path, monkeypatch)
    last.resume()
    assert last.groups["three"] == (ROWS[2:], {})


def test_rows_of_another_commit_are_measured_again(tmp_path, monkeypatch):
    for commit in ("def", "abc+changes"):
        first = journal_of(tmp_path, monkeypatch, commit="abc+changes" if "+" in commit else "abc")
        first.add("one", ROWS[:1], {})
        again = journal_of(tmp_path, monkeypatch, commit)
        again.resume()
        assert again.groups == {}
