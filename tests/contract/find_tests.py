"""Finds the file of a test by the test's name."""

import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

GOOGLE_TEST = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)
PYTHON_TEST = re.compile(r"^def (test_\w+)\(", re.MULTILINE)


@functools.cache
def google_tests() -> dict[str, list[str]]:
    """Files from the root, by "Suite.name"."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.cpp")):
        for suite, name in GOOGLE_TEST.findall(path.read_text()):
            found.setdefault(f"{suite}.{name}", []).append(path.relative_to(ROOT).as_posix())
    return found


@functools.cache
def python_tests() -> dict[str, list[str]]:
    """Files from the root, by "test_file.py::test_name"."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in PYTHON_TEST.findall(path.read_text()):
            file = path.relative_to(ROOT).as_posix()
            found.setdefault(f"{path.name}::{name}", []).append(file)
    return found


def find_test(name: str) -> str:
    """Returns the file of the test; raises ``LookupError`` unless exactly one has the name."""
    found = (python_tests() if "::" in name else google_tests()).get(name, [])
    if len(found) != 1:
        raise LookupError(f"{name}: {len(found)} tests have this name")
    return found[0]
