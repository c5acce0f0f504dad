"""docs/status.md says of every CUDA operator whether a GPU has run it, and does not flatter."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATUS = ROOT / "docs/status.md"
NOT_RUN = "not yet run on a GPU"
TEST = re.compile(r"`(test_cuda\w*\.py)(?:::(\w+))?`")
TESTS = re.compile(rf"{TEST.pattern}(?:, {TEST.pattern})*")
REGISTRATION = re.compile(r'library\.impl\(\s*"(\w+)"')


def cuda_operators() -> set[str]:
    sources = (ROOT / "core/kernels/cuda").rglob("*.cpp")
    return {name for source in sources for name in REGISTRATION.findall(source.read_text())}


def rows() -> dict[str, str]:
    """What the table of operators says of each on a GPU."""
    cells = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", STATUS.read_text(), re.MULTILINE)
    return {name: state.strip() for name, state in cells}


def gpu_results() -> dict[str, dict]:
    """Committed reports of `make gpu-check` by the short name of their card ("H100"), whether all
    of their steps passed or not."""
    found = [
        json.loads(path.read_text()) for path in (ROOT / "benchmarks/results").glob("gpu-*.json")
    ]
    return {re.search(r"[A-Z]+\d+", result["machine"]["card"])[0]: result for result in found}


def has_passed(result: dict, file: str, test: str) -> bool:
    """Whether the file passed or, where a test of it is named, at least that one."""
    step = result["steps"].get(f"CUDA against CPU: {file}", {})
    if not test:
        return step.get("outcome") == "passed"
    assert f"def {test}(" in (ROOT / "tests/python" / file).read_text()
    failed = step.get("details", {}).get("failed", [])
    return step.get("outcome") == "passed" or (bool(failed) and test not in failed)


def test_every_cuda_operator_has_a_row_and_every_row_an_operator():
    assert set(rows()) == cuda_operators()


def test_a_row_claims_a_gpu_only_where_committed_results_of_one_have_its_tests_passed():
    results = gpu_results()
    for name, state in rows().items():
        if state == NOT_RUN:
            continue
        card, _, tests = state.partition(": ")
        card = card.partition(", before ")[0]  # an older kernel was run
        assert card in results, f"{name} claims a {card}; there are results of {sorted(results)}"
        claimed = TESTS.fullmatch(tests) and TEST.findall(tests)
        assert claimed, f"{name} names no test: '{state}'"
        for file, test in claimed:
            assert has_passed(results[card], file, test), f"{name}: {file} {test} did not pass"


def test_operators_that_changed_since_they_ran_are_listed_and_their_rows_say_so():
    (listed,) = re.findall(r"^Kernels that changed since, .*$", STATUS.read_text(), re.MULTILINE)
    changed = {name for name, state in rows().items() if ", before " in state}
    assert set(re.findall(r"`(\w+)`", listed)) == changed


def test_every_kernel_file_is_compiled_and_bound():
    listed = (ROOT / "core/kernels/cuda/CMakeLists.txt").read_text()
    for source in (ROOT / "core/kernels/cuda").rglob("*"):
        if source.suffix in {".cu", ".cpp"}:
            assert re.search(rf"\b{re.escape(source.name)}\b", listed), (
                f"{source.name} is not built"
            )
