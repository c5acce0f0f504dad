"""Every argument of a module has a test in tests/contract/arguments.py, which names existing ones
only.
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "contract"))

import arguments  # noqa: E402
from find_tests import find_test  # noqa: E402

TABLES = (arguments.OF_ANY_MODULE, arguments.FUNCTIONS, arguments.RECIPE_FIELDS)


def arguments_of_the_stubs() -> set[str]:
    tree = ast.parse((ROOT / "python/telens/pytorch/modules.pyi").read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {
        argument.arg
        for function in functions
        for argument in (*function.args.args[1:], *function.args.kwonlyargs)
    }


def test_module_arguments_have_tests_and_nothing_else_is_listed():
    made = "name a test of it in tests/contract/arguments.py"
    assert arguments_of_the_stubs() == set(arguments.tests_of(arguments.OF_ANY_MODULE)), made


def test_names_are_unique_and_their_tests_exist():
    for table in TABLES:
        names = [name for names in table.values() for name in names.split()]
        assert sorted(names) == sorted(set(names))
        for test in table:
            find_test(test)
