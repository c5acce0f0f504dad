"""The reference of the command, docs/command_reference.md, is what its own help says."""

import command_reference
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
    assert "\n  --layer TEXT" in command_reference.section("stats")
