"""The page docs/command_reference.md, made from the command's own help.

.venv/bin/python tests/inspector_cli/command_reference.py > docs/command_reference.md
"""

import subprocess
import sys

from conftest import COMMAND

HEAD = """\
# The `telens` command

Generated from `telens --help` and `telens COMMAND --help`. [Common behavior](command.md) of all \
commands is on another page.

"""


def text_of_help(*command: str) -> str:
    answer = subprocess.run(
        [COMMAND, *command, "--help"], capture_output=True, text=True, check=True
    )
    return "\n".join(line.rstrip() for line in answer.stdout.splitlines()).strip("\n")


def subcommands() -> list[str]:
    """Return the subcommands that `telens --help` lists before its options."""
    listed = text_of_help().partition("\nOptions:\n")[0]
    return [line.split()[0] for line in listed.splitlines() if line.startswith("  ")]


def section(name: str) -> str:
    return f"## telens {name}\n\n```text\n{text_of_help(name)}\n```\n"


def page() -> str:
    names = subcommands()
    links = "\n".join(f"- [telens {name}](#telens-{name})" for name in names)
    head = f"{HEAD}```text\n{text_of_help()}\n```\n\n{links}\n"
    return "\n".join([head, *map(section, names)])


if __name__ == "__main__":
    sys.stdout.write(page())
