"""The reference of the command, docs/command_reference.md, is what its own help says."""

import re

import command_reference
import pytest
from conftest import ROOT


def test_the_committed_reference_is_the_generated_one():
    assert (ROOT / "docs/command_reference.md").read_text() == command_reference.page(), (
        "run: .venv/bin/python tests/inspector_cli/command_reference.py > docs/command_reference.md"
    )


def test_the_reference_has_every_subcommand_with_its_options():
    names = command_reference.subcommands()
    source = (ROOT / "inspector_cli/commands/subcommands.h").read_text()
    assert len(names) == source.count("(CLI::App& app);")
    assert {"info", "stats", "diagnose"} <= set(names)
    assert "\n  --layer REGEX" in command_reference.section("stats")


@pytest.mark.parametrize("command", [[], *([name] for name in command_reference.subcommands())])
def test_help_fits_80_columns_and_shows_an_example(command):
    lines = command_reference.text_of_help(*command).splitlines()
    assert max(map(len, lines)) <= 80
    assert not command or any(line.startswith(f"  telens {command[0]} ") for line in lines)


def test_the_list_of_commands_fits_one_screen_in_groups():
    text = command_reference.text_of_help()
    assert len(text.splitlines()) <= 40
    groups = [line for line in text.splitlines() if line.endswith(":")]
    assert groups == ["Inspect a run:", "Explain a problem:", "Prepare and maintain:", "Options:"]
    names = command_reference.subcommands()
    for name in names:
        (line,) = re.findall(rf"^  {name} +(\S.*)$", text, re.M)
        assert line.endswith(".")
        assert ";" not in line


# Words that mean another thing in each of their subcommands.
OWN_WORDS = {"--help", "--config", "--dir", "--layers"}


def shared_options():
    """Each option that several subcommands have, with those subcommands, in the order of --help."""
    shared = {}
    for name in command_reference.subcommands():
        for option in re.findall(
            r"^  (?:-\w, )?(--[a-z-]+)", command_reference.section(name), re.M
        ):
            shared.setdefault(option, []).append(name)
    return {option: names for option, names in shared.items() if len(names) > 1}


def test_options_that_several_subcommands_have_are_explained_once():
    page = (ROOT / "docs/command.md").read_text()
    rows = re.findall(r"^\| `(--[a-z-]+).*\| ([a-z, -]+) \|$", page, re.M)
    explained = {option: names.split(", ") for option, names in rows}
    expected = {
        option: names for option, names in shared_options().items() if option not in OWN_WORDS
    }
    order = command_reference.subcommands()
    assert {each: sorted(names, key=order.index) for each, names in explained.items()} == expected
