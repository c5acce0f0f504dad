"""The command's output equals the golden files: golden.py explains how to add and update a case."""

import golden
import pytest
from subcommands import SUBCOMMANDS


@pytest.mark.parametrize("case", golden.cases())
def test_output_equals_golden_file(case):
    difference = golden.difference(case)
    assert not difference, f"run tests/inspector_cli/golden.py --update {case}\n{difference}"


def test_every_subcommand_has_a_golden_file():
    commands = [(golden.FOLDER / case / "command").read_text() for case in golden.cases()]
    assert {command.split()[1] for command in commands} >= set(SUBCOMMANDS)
