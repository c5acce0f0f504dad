"""What the tests of all subcommands expect of a finished command."""

import csv
import io

from command_reference import subcommands


def rows_of(result):
    """The rows of its CSV."""
    assert result.returncode == 0, result.stderr
    return list(csv.DictReader(io.StringIO(result.stdout)))


def expect_one_line_error(result, *parts):
    assert result.returncode == 2, result.stdout
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("telens: ")
    for part in parts:
        assert part in result.stderr


def expect_every_subcommand(listed, left_out):
    """Every subcommand that the command itself names is listed, or left out with a reason."""
    listed = set(listed)
    both = listed & set(left_out)
    assert not both, f"listed by this test, and left out of it: {both}"
    missing = set(subcommands()) - listed - set(left_out)
    assert not missing, f"in no list of this test, and not left out with a reason: {missing}"
    gone = (listed | set(left_out)) - set(subcommands())
    assert not gone, f"no subcommands: {gone}"
