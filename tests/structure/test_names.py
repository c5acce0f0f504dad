"""Functions of C++ are verbs or plain names: get_name(gemm), not name_of(gemm)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("core", "hooks", "features", "inspector_cli", "python", "samples", "tests", "benchmarks")
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
# The standard library's and torch's; predicates; size_of, as the field has it.
OTHERS = {"any_of", "all_of", "none_of", "find_first_of", "find_first_not_of", "find_last_of"}
OTHERS |= {"find_last_not_of", "is_alias_of", "size_of", "one_of", "is_of", "is_one_of"}
OTHERS |= {"is_view_of", "has_all_of", "selects_type_of", "selects_number_of"}
# Verbs whose object follows the word.
OTHERS |= {"take_permissions_of", "expect_codes_of", "expect_gradients_of", "every_value_of"}
CALL = re.compile(r"\b([a-z][a-z0-9_]*_of)(?:<[^<>()]*>)?\(")


def names_with_of(source: str) -> set[str]:
    return {name for name in CALL.findall(source) if name not in OTHERS}


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_function_is_called_x_of(folder):
    found = {}
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in SUFFIXES and (names := names_with_of(path.read_text())):
            found[path.relative_to(ROOT).as_posix()] = names
    assert not found, found


def test_such_names_are_found():
    source = "auto a = name_of(gemm); grid_of<E4M3>(); std::ranges::any_of(x, f); bool of(int);"
    assert names_with_of(source) == {"name_of", "grid_of"}
