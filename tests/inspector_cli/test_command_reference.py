"""docs/command_reference.md is generated from the command's help."""

import collections
import re

import command_reference
import pytest
from conftest import ROOT
from subcommands import COLUMNS, SUBCOMMANDS


def test_committed_reference_is_up_to_date():
    assert (ROOT / "docs/command_reference.md").read_text() == command_reference.page(), (
        "run: .venv/bin/python tests/inspector_cli/command_reference.py > docs/command_reference.md"
    )


def test_table_of_subcommands_is_complete():
    assert list(SUBCOMMANDS) == command_reference.subcommands()
    for name, row in SUBCOMMANDS.items():
        assert tuple(row) == COLUMNS, name


def test_reference_has_the_options_of_subcommands():
    assert "\n  --layer REGEX" in command_reference.section("stats")


@pytest.mark.parametrize("command", [[], *([name] for name in command_reference.subcommands())])
def test_help_fits_80_columns_and_shows_an_example(command):
    lines = command_reference.text_of_help(*command).splitlines()
    assert max(map(len, lines)) <= 80
    assert not command or any(line.startswith(f"  telens {command[0]} ") for line in lines)


def test_list_of_commands_fits_one_screen_in_groups():
    text = command_reference.text_of_help()
    assert len(text.splitlines()) <= 40
    groups = [line for line in text.splitlines() if line.endswith(":")]
    assert groups == ["Inspect a run:", "Explain a problem:", "Prepare and maintain:", "Options:"]
    names = command_reference.subcommands()
    for name in names:
        (line,) = re.findall(rf"^  {name} +(\S.*)$", text, re.M)
        assert line.endswith(".")
        assert ";" not in line


# Options whose meaning differs between subcommands.
AMBIGUOUS = {"--help", "--config", "--dir", "--layers", "--timeout"}


def shared_options():
    """Return the options that several subcommands have."""
    sections = [command_reference.section(name) for name in command_reference.subcommands()]
    found = [re.findall(r"^  (?:-\w, )?(--[a-z-]+)", section, re.M) for section in sections]
    counts = collections.Counter(option for options in found for option in set(options))
    return {option for option, count in counts.items() if count > 1}


def test_shared_options_are_documented_once():
    page = (ROOT / "docs/command.md").read_text()
    documented = re.findall(r"^\| `(--[a-z-]+).* \|$", page, re.M)
    assert sorted(documented) == sorted(shared_options() - AMBIGUOUS)
