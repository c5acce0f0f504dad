"""The contract, chapter by chapter. Two pages of docs are generated from these lists:

python tests/contract/contract.py     writes contract.md and contract_arguments.md in docs/internals
"""

import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import arguments
from chapters import (
    answers,
    attention,
    calls,
    causes,
    config_file,
    divided_layers,
    feature_classes,
    features,
    hugging_face_layers,
    layer_names,
    logs,
    objects,
    paddle_arguments,
    paddle_layers,
    peer_complaints,
    ranks,
    session,
    tensor_statistics,
    transformer_engine_arguments,
    transformer_engine_scripts,
)
from find_tests import ROOT, find_test
from statement import Statement

PROMISES_PAGE = ROOT / "docs/internals/contract.md"
ARGUMENTS_PAGE = ROOT / "docs/internals/contract_arguments.md"

PROMISES_INTRODUCTION = """\
# The contract

The promises to config files, scripts and feature classes written for Transformer Engine's precision
debugging. **Only import lines change**: `transformer_engine.X` becomes `telens.X`,
`nvdlfw_inspect.api` becomes `telens.debug`, and `nvdlfw_inspect.X` becomes `telens.debug.X`.

*(ours)* marks a deliberate difference from the peer (nvdlfw-inspect 0.2.2 with Transformer Engine
2.20), which has a defect or a gap there. Each promise has a test that fails if it is broken;
[tests/contract](../../tests/contract) names it.
"""

ARGUMENTS_INTRODUCTION = """\
# The names of Transformer Engine, each with its test

Each argument of the PyTorch modules, each function and each recipe field, with a test that uses
it. The page is generated: edit
[tests/contract/arguments.py](../../tests/contract/arguments.py) and run
`python tests/contract/contract.py`.
"""
ARGUMENT_TABLES = {
    "Arguments of modules": arguments.OF_ANY_MODULE,
    "Functions, classes and methods": arguments.FUNCTIONS,
    "Fields of recipes": arguments.RECIPE_FIELDS,
}

CHAPTERS: tuple[tuple[str, tuple[Statement, ...]], ...] = (
    ("The session", session.STATEMENTS),
    ("Names of layers", layer_names.STATEMENTS),
    ("The config file", config_file.STATEMENTS),
    ("The seven calls", calls.STATEMENTS),
    ("Feature classes", feature_classes.STATEMENTS),
    ("Objects that feature classes and scripts touch", objects.STATEMENTS),
    ("Features", features.STATEMENTS),
    ("Causes", causes.STATEMENTS + answers.STATEMENTS),
    ("Statistics", tensor_statistics.STATEMENTS),
    ("Text logs", logs.STATEMENTS),
    ("Scripts and checkpoints of Transformer Engine", transformer_engine_scripts.STATEMENTS),
    ("Models of transformers with our layers", hugging_face_layers.STATEMENTS),
    ("Layers that ranks share", divided_layers.STATEMENTS),
    ("Arguments of Transformer Engine's modules", transformer_engine_arguments.STATEMENTS),
    ("Attention", attention.STATEMENTS),
    ("Several ranks", ranks.STATEMENTS),
    ("PaddlePaddle", paddle_layers.STATEMENTS + paddle_arguments.STATEMENTS),
    ("Known complaints about the peer", peer_complaints.STATEMENTS),
)


def all_statements() -> list[Statement]:
    """Every statement, in the order of the pages."""
    return [statement for _, statements in CHAPTERS for statement in statements]


def wrap(item: str) -> str:
    return textwrap.fill(
        item, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def render_promises() -> str:
    """The page for users, with statements only."""
    parts = [PROMISES_INTRODUCTION]
    for title, statements in CHAPTERS:
        lines = [wrap(f"- {statement.text}") for statement in statements]
        parts.append("\n".join([f"## {title}", "", *lines]) + "\n")
    return "\n".join(parts)


def render_arguments() -> str:
    """The page of names, sorted, each with the test that uses it."""
    parts = [ARGUMENTS_INTRODUCTION]
    for title, table in ARGUMENT_TABLES.items():
        lines = [f"## {title}", "", "| name | test |", "|---|---|"]
        for name, test in sorted(arguments.tests_of(table).items()):
            lines.append(f"| `{name}` | [`{test.split('::')[-1]}`](../../{find_test(test)}) |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PROMISES_PAGE.write_text(render_promises())
    ARGUMENTS_PAGE.write_text(render_arguments())
