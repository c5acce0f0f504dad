"""Fill the tables of docs/internals/{status,performance}.md from committed GPU reports.

  python benchmarks/gpu_pages.py    rewrites the tables of both pages

The pages keep what is written by hand: the tests of each operator, and the text around the tables.
A test compares the pages with what this program writes.
"""

import json
import re
from pathlib import Path

from gpu_checks.kernel_code import changed_files, changed_operators
from gpu_rows.groups import GROUPS, rows_of

ROOT = Path(__file__).resolve().parents[1]
STATUS = ROOT / "docs/internals/status.md"
PERFORMANCE = ROOT / "docs/internals/performance.md"

NOT_RUN = "not yet run on a GPU"
BEFORE = ", before a change"
CHANGED = "Kernel files whose code changed after the newest run that passed: "
OPERATOR_ROW = re.compile(r"^\| `(\w+)` \|([^|]*)\|([^|]*)\|$", re.MULTILINE)
CHANGED_LINE = re.compile(rf"^{CHANGED}.*$", re.MULTILINE)
TEST = re.compile(r"`(test_cuda\w*\.py)(?:::(\w+))?`")
MEASURED_ROW = re.compile(
    r"^\| ([^|`]+) \| ([^|]+) \| ([^|]*peer's[^|]*) \| ([^|]+) \|$", re.MULTILINE
)


def read_reports(folder: Path) -> dict[str, dict]:
    """The reports of `make gpu-check` by the short names of their cards ("H100")."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("gpu-*.json"))]
    return {re.search(r"[A-Z]+\d+", report["machine"]["card"])[0]: report for report in found}


def has_passed(report: dict, file: str, test: str) -> bool:
    """Whether the file passed or, if a test of it is named, that test."""
    step = report["steps"].get(f"CUDA against CPU: {file}", {})
    if step.get("outcome") == "passed":
        return True
    failed = step.get("details", {}).get("failed", [])
    return bool(test) and bool(failed) and test not in failed


def operator_state(tests: str, changed: dict[str, bool], reports: dict[str, dict]) -> str:
    """The cell of an operator: the card that ran its tests, at best with the code of today.
    `changed`: for each card whether the code changed after its run."""
    named = TEST.findall(tests)
    if not named:
        return NOT_RUN
    cards = [
        card for card, report in reports.items() if all(has_passed(report, *each) for each in named)
    ]
    if not cards:
        return f"{NOT_RUN}: {tests}"
    card = max(cards, key=lambda each: (not changed[each], each))
    return f"{card}{BEFORE if changed[card] else ''}: {tests}"


def render_status(page: str, root: Path, reports: dict[str, dict]) -> str:
    digests = {card: report["sources"].get("kernels", {}) for card, report in reports.items()}
    changed = {card: changed_operators(root, each) for card, each in digests.items()}
    # With the fewest files that changed since.
    newest = min(
        (changed_files(root, each) for card, each in digests.items() if reports[card]["passed"]),
        key=len,
        default=set(),
    )
    listed = ", ".join(f"`{name}`" for name in sorted(newest)) or "none"

    def row(found: re.Match) -> str:
        name, host, state = found.groups()
        tests = state.strip().partition(": ")[2]
        cell = operator_state(
            tests, {card: name in names for card, names in changed.items()}, reports
        )
        return f"| `{name}` |{host}| {cell} |"

    page = OPERATOR_ROW.sub(row, page)
    return CHANGED_LINE.sub(f"{CHANGED}{listed}.", page)


def target_of(row) -> str:
    described = row.described()
    if described["target"] is None:
        return f"reported: share {described['value_is']}"
    return f"{described['target']} {described['value_is']}"


def measured(name: str, reports: dict[str, dict]) -> str:
    words = {True: ", met", False: ", **missed**", None: ""}
    cells = [
        f"{card}: {row['value']:.3f}{words[row['met']]}"
        for card, report in sorted(reports.items())
        for row in report["benchmarks"]
        if row["name"] == name and row["outcome"] == "measured"
    ]
    return "; ".join(cells) or NOT_RUN


def render_performance(page: str, reports: dict[str, dict]) -> str:
    rows = {row.name: row for group in GROUPS for row in rows_of(group)}

    def line(found: re.Match) -> str:
        row = rows.get(found[1])
        if row is None:
            return found[0]  # its own test names a row that is not there any more
        return f"| {row.name} | {row.peer} | {target_of(row)} | {measured(row.name, reports)} |"

    return MEASURED_ROW.sub(line, page)


def render_all() -> dict[Path, str]:
    reports = read_reports(ROOT / "benchmarks/results")
    return {
        STATUS: render_status(STATUS.read_text(), ROOT, reports),
        PERFORMANCE: render_performance(PERFORMANCE.read_text(), reports),
    }


if __name__ == "__main__":
    for path, text in render_all().items():
        path.write_text(text)
