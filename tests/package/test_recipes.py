"""Follows CONTRIBUTING.md's recipes for a statistic and a subcommand in a copy of the tree.

The tests change only the product files of a recipe's table, at the code of its last column, and
build the command.
"""

import re
import shutil
from pathlib import Path

import pytest
from programs import run

ROOT = Path(__file__).parents[2]
PRODUCT = ("core/", "record/", "hooks/", "analysis/", "features/", "inspector_cli/", "python/")
SUBCOMMAND = """#include <fmt/core.h>

#include "inspector_cli/commands/subcommands.h"

#include <CLI/CLI.hpp>

namespace telens::cli {

void add_probe(CLI::App& app) {
  CLI::App* command = app.add_subcommand("probe", "Print a fixed line.");
  command->callback([] { fmt::print("probe ran\\n"); });
}

}  // namespace telens::cli
"""


def product_files(recipe: str) -> dict[str, str]:
    """Returns the product files of the recipe's table, each with the code of its last column."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition(f"\n### {recipe}\n")[2]
    rows = re.findall(
        r"^\| ([\w./]+) \|.*\| `([^`]+)` \|$", section.partition("\n### ")[0], re.MULTILINE
    )
    return {file: code for file, code in rows if file.startswith(PRODUCT)}


def append_copy(path: Path, example: str, old: str, new: str) -> None:
    """Finds the regular expression `example` and inserts a renamed copy after it."""
    text = path.read_text()
    found = re.search(example, text)
    assert found, f"{path} has no {example}"
    copy = "\n" + found.group().replace(old, new)
    path.write_text(text[: found.end()] + copy + text[found.end() :])


def follow_statistic(tree: Path) -> None:
    ((catalogue, code),) = product_files("A statistic").items()
    row = rf"(?m)^ +{re.escape(code)}(?:.*\n)+?.*\}}\)\}},"
    append_copy(tree / catalogue, row, '"rms"', '"probe_rms"')


def follow_subcommand(tree: Path) -> None:
    (source, _), *others = product_files("A subcommand").items()
    (tree / source.replace("blocks", "probe")).write_text(SUBCOMMAND)
    for file, code in others:
        append_copy(tree / file, rf"(?<!\w){re.escape(code)}", "blocks", "probe")


@pytest.fixture(scope="module")
def telens(tmp_path_factory) -> Path:
    """Returns the command, built from a copy of the tree with both recipes applied."""
    tree = tmp_path_factory.mktemp("recipes")
    listed = run("git", "-C", ROOT, "ls-files", "-coz", "--exclude-standard")
    for file in listed.rstrip("\0").split("\0"):
        if (ROOT / file).is_file():
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, tree / file)
    follow_statistic(tree)
    follow_subcommand(tree)
    build = tree / "build"
    disabled = [f"-DTELENS_{part}=OFF" for part in ("TORCH", "TESTS", "BENCHMARKS", "INSTALL")]
    run("cmake", "-S", tree, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *disabled)
    run("cmake", "--build", build, "--target", "telens_command")
    return build / "bin" / "telens"


def test_statistic_recipe_adds_a_statistic(telens):
    assert "probe_rms: root of the mean of x^2;" in run(telens, "features", "LogTensorStats")


def test_subcommand_recipe_adds_a_subcommand(telens):
    assert re.search(r"^ +probe +Print a fixed line", run(telens, "--help"), re.MULTILINE)
    assert run(telens, "probe") == "probe ran\n"
