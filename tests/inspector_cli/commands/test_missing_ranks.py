"""telens diagnose and info, on ranks that have no session, no file, another configuration, or that
ended before the others."""

import json
import os
import re

import h5py
import pytest
from conftest import Lines
from pseudo_terminal import on_terminal
from rewritten_run import without_checksums

STEPS = 6
ALONE = (
    "debug.initialize: rank 1 of 2 had not called it after 300 s, and the others began; now each "
    "rank records its own values: nothing is reduced over ranks or compared. Call "
    "debug.initialize on every rank, with one configuration and at about the same time"
)
UNLIKE = (
    "the ranks have different configurations, section 'watch' of rank 1 differing from rank 0; "
    "nothing is reduced over ranks, each records its own values; give all ranks the same "
    "configuration"
)
RANK_RULES = ("rank_scales", "unreduced_gradient", "wrong_collective")


def healthy(steps=STEPS, first=0):
    lines = Lines()
    for step in range(first, first + steps):
        lines.record(step, "fc1", "activation", "nonfinite", 0)
    return lines


def said(result):
    return " ".join(result.stdout.split())


def told(telens, run):
    return json.loads(telens("diagnose", run, "--format", "json").stdout)


def test_rank_without_session_is_reported(telens, tmp_path):
    lines = healthy()
    lines.event(0, "warning", ALONE, "-")
    lines.write(tmp_path, 0, 2)
    text = said(telens("diagnose", tmp_path))
    assert f"UTC since iteration 0: {ALONE} rank 1 of 2 has no file in this run" in text
    assert " rules skipped because ranks were not compared (" in text
    assert (
        "(a rank had no session when the other ranks started, so each rank recorded separately): "
        in text
    )
    for cause in RANK_RULES:
        assert f"skipped {cause}" not in text
    found = told(telens, tmp_path)
    assert found["recording"][0] == f"since iteration 0: {ALONE}"
    assert {each["cause"] for each in found["not_compared"]} >= set(RANK_RULES)
    assert not {each["cause"] for each in found["not_recorded"]} & set(RANK_RULES)
    shown = said(telens("info", tmp_path))
    assert ALONE in shown
    assert "rank 1 of 2 has no file in this run" in shown


def test_ranks_with_different_config_are_reported(telens, tmp_path):
    for rank in range(2):
        lines = healthy()
        lines.event(3, "warning", UNLIKE, "-")
        lines.write(tmp_path, rank, 2)
    text = said(telens("diagnose", tmp_path))
    assert f"UTC since iteration 3: {UNLIKE} no problems found" in text
    assert "(the ranks ran under different configurations)" in text
    (note,) = told(telens, tmp_path)["recording"]
    assert note == f"since iteration 3: {UNLIKE}"


@pytest.mark.parametrize(("words", "again"), [(ALONE, False), (UNLIKE, False), (UNLIKE, True)])
def test_warning_ends_after_clean_resume(telens, tmp_path, words, again):
    for first in (0, 3):
        for rank in range(2):
            lines = healthy(first=first)
            if first == 0 or again:
                lines.event(first, "warning", words, "-")
            lines.write(tmp_path, rank, 2)
    found = told(telens, tmp_path)
    since = "since iteration 0" if again else "from iteration 0 until the resume at iteration 3"
    assert found["recording"] == [f"{since}: {words}"]
    assert bool(found["not_compared"]) == again


def test_only_missing_ranks_are_reported(telens, tmp_path):
    healthy().write(tmp_path / "some", 0, 4)
    healthy().write(tmp_path / "some", 2, 4)
    (note,) = told(telens, tmp_path / "some")["recording"]
    assert note.startswith("ranks 1, 3 of 4 have no file in this run, so nothing is known about")
    for rank in range(2):
        healthy().write(tmp_path / "all", rank, 2)
    found = told(telens, tmp_path / "all")
    assert (found["recording"], found["not_compared"]) == ([], [])
    one = tmp_path / "all/telens/run/rank00001.h5"
    found = told(telens, one)
    assert found["recording"] == []  # the others lie beside it
    assert {each["why"] for each in found["not_compared"]} == {"only rank 1 of 2 ranks was read"}


def test_possible_comparison_is_not_missing(telens, tmp_path):
    """Weights of two ranks that did not share a session can still be compared."""
    for rank in range(2):
        lines = Lines()
        for step in range(STEPS):
            parted = rank == 1 and step > 3
            lines.record(step, "fc1", "weight", "l2_norm", 2 if parted else 1)
        lines.event(0, "warning", UNLIKE, "-")
        lines.write(tmp_path, rank, 2)
    found = told(telens, tmp_path)
    assert [each["cause"] for each in found["findings"]] == ["rank_mismatch"]
    assert "rank_mismatch" not in {each["cause"] for each in found["not_compared"]}


# ---- ends

GONE = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"
CAUSE = "ValueError: batch 7 has no labels"


def ended(log_dir, ends):
    """Writes one rank after the other, in the order of their ends: killed, closed, or an
    exception.
    """
    for rank, reason in ends:
        lines = healthy()
        if reason == "kill":
            lines.kill()
        elif reason:
            lines.end(reason)
        lines.write(log_dir, rank, len(ends))
    return log_dir


@pytest.mark.parametrize(
    ("ends", "first", "origin"),
    [
        ([(1, CAUSE), (0, GONE), (2, GONE)], CAUSE, "the end of rank 1"),
        # A rank that failed because another one ended may close its file before that one does.
        ([(0, GONE), (2, GONE), (1, CAUSE)], CAUSE, "the end of rank 1"),
        ([(2, "kill"), (0, GONE), (1, GONE)], "not closed (killed?)", "the end of rank 2"),
    ],
)
def test_the_end_that_brought_the_others_about_comes_first(telens, tmp_path, ends, first, origin):
    notes = told(telens, ended(tmp_path, ends))["recording"]
    assert first in notes[0]
    assert "consequence" not in notes[0]
    for note in notes[1:]:
        assert re.search(rf"Connection closed.*(after|consequence of) {origin}", note)
        assert "likely" in note
    shown = said(telens("info", tmp_path))
    assert shown.index(first) < shown.index("Connection closed")


DISK = "disk"


def ended_at(log_dir, ends):
    """Like ended(), with the seconds of the ends. DISK: only the recording ended."""
    for rank, reason, seconds in ends:
        lines = healthy()
        if reason == "kill":
            lines.kill()
        elif reason:
            lines.end(reason)
        lines.write(log_dir, rank, len(ends))
        path = log_dir / f"telens/run/rank{rank:05}.h5"
        time = 1_800_000_000 + seconds
        if reason == "kill":
            os.utime(path, (time, time))
            continue
        with h5py.File(path, "r+", libver="latest") as file:
            rows = file["end"][:]
            rows["time"] = time
            if reason == DISK:
                rows["state"] = 1
            file["end"][:] = rows
            without_checksums(file)
    return log_dir


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        # If a full disk ends a recording, its process has not ended.
        ([(0, DISK, 0), (1, GONE, 5)], [(1, ""), (0, "")]),
        ([(0, DISK, 0), (1, CAUSE, 5), (2, GONE, 6)], [(1, ""), (2, "after"), (0, "")]),
        # A launcher may kill a rank whose file was last written long before.
        (
            [(0, CAUSE, 5), (1, "kill", 0), (2, GONE, 6)],
            [(0, ""), (1, ""), (2, "1.0 s after the end of rank 0, and likely a consequence")],
        ),
        (
            [(0, "KeyboardInterrupt", 0), (1, CAUSE, 1), (2, GONE, 2)],
            [(1, ""), (0, ""), (2, "1.0 s after the end of rank 1, and likely a consequence")],
        ),
        (
            [(0, "TimeoutError: timed out", 600), (1, "kill", 0)],
            [(1, ""), (0, "the file of rank 1 was last written 600.0 s earlier")],
        ),
        ([(0, GONE, 0), (1, "kill", 5)], [(0, ""), (1, "")]),
        ([(0, CAUSE, 0), (1, GONE, 600)], [(0, ""), (1, "rank 0 ended first, 600.0 s before")]),
        # Clocks of machines and times of files may be wrong by seconds, but not by more.
        (
            [(0, GONE, 0), (1, CAUSE, 5)],
            [(1, ""), (0, "likely a consequence of the end of rank 1")],
        ),
        ([(0, GONE, 0), (1, CAUSE, 100)], [(0, ""), (1, "")]),
        ([(0, "", 0), (1, GONE, 600)], [(1, "")]),
    ],
)
def test_distant_or_unsure_finding_is_not_an_origin(telens, tmp_path, ends, expected):
    notes = told(telens, ended_at(tmp_path, ends))["recording"]
    assert [int(re.match(r"the recording of rank (\d)", each)[1]) for each in notes] == [
        rank for rank, _ in expected
    ]
    for note, (_, words) in zip(notes, expected, strict=True):
        assert words in note
        if not words:
            assert not re.search(r"likely|s before|s after", note)


def test_ranks_that_lose_one_that_ended_cleanly_say_so(telens, tmp_path):
    (note,) = told(telens, ended(tmp_path, [(1, ""), (0, GONE)]))["recording"]
    assert "after rank 1 had ended cleanly, and likely a consequence" in note


def test_lone_collective_error_is_not_a_consequence(telens, tmp_path):
    (note,) = told(telens, ended(tmp_path, [(0, GONE)]))["recording"]
    assert note.endswith(GONE)


def test_run_end_is_not_cut_on_narrow_terminals(telens, tmp_path):
    words = "RuntimeError: fc1: " + "rank 0 runs it under fp8_delayed_scaling, " * 12 + "and stop"
    run = ended(tmp_path, [(0, words)])
    assert words in said(telens("info", run))
    assert words in said(telens("diagnose", run))  # in lines of 100 columns
    lines = on_terminal(60, "info", run).splitlines()
    at = next(i for i, line in enumerate(lines) if "ended by an exception" in line)
    assert "and stop" in " ".join(lines[at : at + 15])
    assert all(len(line) <= 60 for line in lines[at : at + 10])
