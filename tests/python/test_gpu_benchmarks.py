"""Every row of the benchmarks for GPUs runs, with tiny shapes on the CPU: none shall end on a
mistake where a GPU is waiting."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu_rows.groups import GROUPS, rows_of  # noqa: E402
from gpu_rows.results import Results, line, measure  # noqa: E402
from gpu_rows.row import CannotRun, Measured, Row, at_least, at_most  # noqa: E402

# Why a row may be left out where there is no GPU.
REASONS = ("in this build", "torchao cannot be imported", "has no split_accumulator")


@pytest.mark.timeout(900)
def test_every_row_runs_in_a_rehearsal_or_says_what_is_missing(library_path, tmp_path):
    out = tmp_path / "rows.json"
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "--rehearse", "--out", str(out)]
    result = subprocess.run(
        [*command, "--library", str(library_path)],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = {row["name"]: row for row in json.loads(out.read_text())}
    assert set(rows) == {row.name for group in GROUPS for row in rows_of(group)}
    for name, row in rows.items():
        assert row["outcome"] in ("rehearsed", "skipped"), row
        if row["outcome"] == "skipped":
            assert any(reason in row["reason"] for reason in REASONS), name


class Bench:
    """Measures nothing."""

    rehearse = False

    def settle(self):
        pass


def measured(measure_it, **about):
    row = Row("a row", "a peer", measure_it, **about)
    return measure(row, Bench(), "NVIDIA H200")


def raising(error):
    def action(bench):
        raise error

    return action


def test_a_row_that_throws_is_failed_with_its_reason_and_the_next_one_measured():
    failed = measured(raising(RuntimeError("CUDA error: out of memory\na\nb\nc\nd\ne")))
    assert failed["outcome"] == "failed"
    assert failed["reason"] == "RuntimeError: CUDA error: out of memory\na\nb\nc"
    assert measured(lambda bench: Measured(1.0, 2.0))["outcome"] == "measured"


def test_a_row_whose_kernel_fails_only_when_it_is_waited_for_is_failed(monkeypatch):
    monkeypatch.setattr(Bench, "settle", raising(RuntimeError("illegal memory access")))
    assert measured(lambda bench: Measured(1.0, 2.0))["outcome"] == "failed"


def test_a_row_without_its_operator_is_skipped_with_the_reason():
    row = measured(raising(CannotRun("telens::x has no kernel for CUDA in this build")))
    assert (row["outcome"], row["reason"]) == (
        "skipped",
        "telens::x has no kernel for CUDA in this build",
    )


@pytest.mark.parametrize(
    ("about", "value", "met"),
    [
        ({"target": at_least(2)}, 2.0, True),
        ({"target": at_least(2.1)}, 2.0, False),
        ({"target": at_most(0.5), "of_time": True}, 0.5, True),
        ({"target": at_most(0.4), "of_time": True}, 0.5, False),
        ({"target": at_least({"H100": 3, "H200": 1})}, 2.0, True),
        ({"target": at_least({"B200": 3})}, 2.0, None),
        ({}, 2.0, None),
    ],
)
def test_a_row_is_judged_by_its_speed_or_its_time_and_by_the_card(about, value, met):
    row = measured(lambda bench: Measured(1.0, 2.0), **about)
    assert (row["value"], row["met"]) == (value, met)
    assert (row["card"], row["peer"]) == ("NVIDIA H200", "a peer")
    assert "a row: " in line(row)


def test_rows_of_other_groups_stay_in_the_file(tmp_path):
    path = tmp_path / "rows.json"
    for name, outcome in (("one", "failed"), ("two", "skipped"), ("one", "skipped")):
        Results(path).add({"name": name, "outcome": outcome, "reason": "none"})
    kept = {row["name"]: row["outcome"] for row in json.loads(path.read_text())}
    assert kept == {"one": "skipped", "two": "skipped"}
