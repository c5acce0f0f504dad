"""The index docs/internals/decisions.md, generated from docs/internals/decisions/*.md.

python tests/structure/decisions_index.py     writes docs/internals/decisions.md
"""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs/internals"
PAGE = DOCS / "decisions.md"

# In the order of the house (architecture.md).
ROOMS = (
    "house",
    "formats_and_operators",
    "modules",
    "cuda",
    "hooks_and_features",
    "configuration",
    "statistics",
    "run_file",
    "python",
    "contract",
)

INTRODUCTION = """\
# Decisions

What differs from the design that this project started from, or adds to it, with the reason: a page
for each room. This index is made by `python tests/structure/decisions_index.py` from the first
words of each decision; add a decision at the end of its room's page.
"""

TITLE = re.compile(r"^# Decisions: (.+)$", re.MULTILINE)
DECISION = re.compile(r"^- \*\*(.+?)\*\*", re.MULTILINE | re.DOTALL)


def room_index(room: str) -> str:
    text = (DOCS / "decisions" / f"{room}.md").read_text()
    lines = [f"- {' '.join(title.split()).rstrip('.')}" for title in DECISION.findall(text)]
    title = TITLE.search(text)[1]
    heading = f"## {title[0].upper()}{title[1:]}"
    return "\n".join([heading, "", f"[The reasons](decisions/{room}.md)", "", *lines]) + "\n"


def render() -> str:
    return "\n".join([INTRODUCTION, *(room_index(room) for room in ROOMS)])


if __name__ == "__main__":
    PAGE.write_text(render())
