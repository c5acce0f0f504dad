"""CONTRIBUTING.md's recipes for a statistic and a subcommand, followed in a copy of the tree.

Only the product files of a recipe's table are changed, and `telens` must then have what it makes.
"""

import re
import shutil
from pathlib import Path

import pytest
from programs import run

ROOT = Path(__file__).parents[2]
PRODUCT = ("core/", "hooks/", "features/", "inspector_cli/", "python/")
SUBCOMMAND = """#include <fmt/core.h>

#include "inspector_cli/commands/subcommands.h"

#include <CLI/CLI.hpp>

namespace telens::cli {

void add_probe(CLI::App& app) {
  CLI::App* command = app.add_subcommand("probe", "Says that it is there.");
  command->callback([] { fmt::print("it is there\\n"); });
}

}  // namespace telens::cli
"""


def product_files(recipe: str) -> list[str]:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition(f"\n### {recipe}\n")[2]
    rows = re.findall(r"^\| ([\w./]+) \|", section.partition("\n### ")[0], re.MULTILINE)
    return [file for file in rows if file.startswith(PRODUCT)]


def write_again(path: Path, example: str, old: str, new: str) -> None:
    """Puts a copy of the example, with another name, behind it."""
    text = path.read_text()
    found = re.search(example, text)
    assert found, f"{path} has no {example}"
    copy = found.group().replace(old, new)
    path.write_text(text[: found.end()] + copy + text[found.end() :])


def follow_statistic(tree: Path) -> None:
    (catalogue,) = product_files("A statistic")
    write_again(
        tree / catalogue, r'\n +\{\.name = "rms",(?:.*\n)+?.*\}\)\},', '"rms"', '"probe_rms"'
    )


def follow_subcommand(tree: Path) -> None:
    source, *others = product_files("A subcommand")
    (tree / source.replace("blocks", "probe")).write_text(SUBCOMMAND)
    for file in others:
        example = r"\s(?:void )?(?:add_)?blocks(?:\.cpp|,|\(CLI::App& app\);)"
        write_again(tree / file, example, "blocks", "probe")


@pytest.fixture(scope="module")
def telens(tmp_path_factory) -> Path:
    """The command of a copy of the tree in which both recipes have been followed."""
    tree = tmp_path_factory.mktemp("recipes")
    listed = run("git", "-C", ROOT, "ls-files", "-coz", "--exclude-standard")
    for file in listed.rstrip("\0").split("\0"):
        if (ROOT / file).is_file():
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, tree / file)
    follow_statistic(tree)
    follow_subcommand(tree)
    build = tree / "build"
    left_out = [f"-DTELENS_{part}=OFF" for part in ("TORCH", "TESTS", "BENCHMARKS", "INSTALL")]
    run("cmake", "-S", tree, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *left_out)
    run("cmake", "--build", build, "--target", "telens_command")
    return build / "bin" / "telens"


def test_a_statistic_by_the_recipe_is_one_that_a_feature_takes(telens):
    assert "probe_rms: root of the mean of x^2;" in run(telens, "features", "LogTensorStats")


def test_a_subcommand_by_the_recipe_is_listed_and_runs(telens):
    assert re.search(r"^ +probe +Says that it is there", run(telens, "--help"), re.MULTILINE)
    assert run(telens, "probe") == "it is there\n"
