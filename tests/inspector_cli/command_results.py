"""Checks of a finished command."""

import csv
import io


def rows_of(result):
    """Return the rows of the CSV output."""
    assert result.returncode == 0, result.stderr
    return list(csv.DictReader(io.StringIO(result.stdout)))


def expect_one_line_error(result, *parts):
    assert result.returncode == 2, result.stdout
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("telens: ")
    for part in parts:
        assert part in result.stderr
