"""The recipes of CONTRIBUTING.md name files that are there, with the example that they quote."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("core", "hooks", "features", "inspector_cli", "python")
RECIPES = {
    "A statistic": r'"rms"',
    "A feature": r"disable_fp8(_gemm_description|_gemm\(\)|/)",
    "A subcommand": r"add_blocks(\(CLI|,)|^ +blocks\.cpp",
    "A module argument": r"parallel_attention_mlp",
    "A kernel": None,
    "A format": None,
}
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def section(recipe: str) -> str:
    return TEXT.partition(f"\n### {recipe}\n")[2].partition("\n### ")[0]


def rows(recipe: str) -> list[tuple[str, str]]:
    """(file, words of the example) of each row of a recipe's table."""
    found = re.findall(r"^\| ([\w./]+) \| .+ \| `(.+)` \|$", section(recipe), re.MULTILINE)
    assert len(found) == section(recipe).count("\n| ") - 1, f"a row of {recipe} reads otherwise"
    return found


def test_the_page_has_these_recipes():
    assert re.findall(r"^### (.+)$", TEXT, re.MULTILINE) == list(RECIPES)


@pytest.mark.parametrize("recipe", RECIPES)
def test_files_of_a_recipe_have_the_example(recipe):
    assert len(rows(recipe)) >= 4
    for file, words in rows(recipe):
        assert words in (ROOT / file).read_text(), f"{file} has no '{words}'"


@pytest.mark.parametrize("recipe", [name for name, pattern in RECIPES.items() if pattern])
def test_the_product_has_the_example_in_these_files_alone(recipe):
    command = ["git", "grep", "-lE", RECIPES[recipe], "--", *PRODUCT]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()
    named = {file for file, _ in rows(recipe) if file.split("/")[0] in PRODUCT}
    assert set(files) == named


def test_files_that_the_text_names_are_there():
    named = re.findall(r"\b(?:core|hooks|features|inspector_cli|tests|docs)/[\w./]+\.\w+", TEXT)
    assert [file for file in named if not (ROOT / file).is_file()] == []
