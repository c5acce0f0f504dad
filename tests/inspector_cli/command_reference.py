"""The page docs/command_reference.md, made from the command's own help.

.venv/bin/python tests/inspector_cli/command_reference.py > docs/command_reference.md
"""

import subprocess
import sys

from conftest import COMMAND

HEAD = """\
# The `telens` command

Made from `telens --help` and `telens SUBCOMMAND --help`; a test compares them. \
[What the command says](command.md) explains what all subcommands have in common.

"""


def text_of_help(*subcommand: str) -> str:
    answer = subprocess.run(
        [COMMAND, *subcommand, "--help"], capture_output=True, text=True, check=True
    )
    return "\n".join(line.rstrip() for line in answer.stdout.splitlines()).strip("\n")


def subcommands() -> list[str]:
    """The names that the help lists: its lines of two leading spaces behind "Subcommands:"."""
    listed = text_of_help().partition("\nSubcommands:\n")[2].partition("\n\n")[0]
    return [line.split()[0] for line in listed.splitlines() if line[2] != " "]


def footer() -> str:
    """The paragraph that ends every help: it stands once, at the top of the page."""
    return text_of_help().rpartition("\n\n")[2]


def section(name: str) -> str:
    text = text_of_help(name).replace(footer(), "").rstrip()
    return f"## telens {name}\n\n```text\n{text}\n```\n"


def page() -> str:
    names = subcommands()
    links = "\n".join(f"- [telens {name}](#telens-{name})" for name in names)
    head = f"{HEAD}```text\n{footer()}\n```\n\n{links}\n"
    return "\n".join([head, *map(section, names)])


if __name__ == "__main__":
    sys.stdout.write(page())
