"""Finds a test by its name: the file it stands in, and how to run it."""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

GOOGLE_TEST = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)
PROGRAM = re.compile(
    r"telens_test\(\s*(\w+)\s+SOURCES\s+(.*?)\s+(?:LIBRARIES|PROPERTIES|\))", re.DOTALL
)
PYTHON_TEST = re.compile(r"^def (test_\w+)\(", re.MULTILINE)

PYTEST = "pytest"
PADDLE_PYTEST = "pytest beside Paddle"  # in the environment of `make test-paddle`


@dataclass(frozen=True)
class FoundTest:
    """Where a test stands; ``program`` is a GoogleTest program's target, or one of the pytests."""

    file: str  # from the root
    program: str
    selection: str  # --gtest_filter, or pytest's node id


@functools.cache
def google_tests() -> dict[str, list[FoundTest]]:
    """By "Suite.name"."""
    found: dict[str, list[FoundTest]] = {}
    for cmake in sorted((ROOT / "tests").rglob("CMakeLists.txt")):
        for program, sources in PROGRAM.findall(cmake.read_text()):
            for source in sources.split():
                path = cmake.parent / source
                for suite, name in GOOGLE_TEST.findall(path.read_text()):
                    test = FoundTest(
                        path.relative_to(ROOT).as_posix(), program, f"*{suite}.{name}*"
                    )
                    found.setdefault(f"{suite}.{name}", []).append(test)
    return found


@functools.cache
def python_tests() -> dict[str, list[FoundTest]]:
    """By "test_file.py::test_name"."""
    found: dict[str, list[FoundTest]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = path.relative_to(ROOT).as_posix()
        for name in PYTHON_TEST.findall(path.read_text()):
            program = PADDLE_PYTEST if file.startswith("tests/paddle/") else PYTEST
            test = FoundTest(file, program, f"{file}::{name}")
            found.setdefault(f"{path.name}::{name}", []).append(test)
    return found


def find_test(name: str) -> FoundTest:
    """The one test of this name; ``LookupError`` if there is none, or more than one."""
    found = (python_tests() if "::" in name else google_tests()).get(name, [])
    if len(found) != 1:
        raise LookupError(f"{name}: {len(found)} tests have this name")
    return found[0]
