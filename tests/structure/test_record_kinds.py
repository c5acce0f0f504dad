"""A feature that records rows of its own kind names that kind in few files beside its own."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("core", "hooks", "features", "inspector_cli", "python")

# PrecisionLedger records one: its files, its struct with the columns, and its subcommand.
OWN = re.compile(
    r"features/precision_ledger/.*|hooks/rows/ledger_row\.h|inspector_cli/commands/ledger\.cpp"
)
# Rules of the diagnosis read what they need of any table; a search asks it for its candidates.
READERS = re.compile(
    r"features/diagnosis/.*|inspector_cli/report/diagnosis_\w+\.cpp"
    r"|inspector_cli/bisect/candidates\..*"
)
NAMED = re.compile(r"ledger", re.IGNORECASE)

# Lines in lists: of tables, of features, of subcommands.
TABLES = {"hooks/rows/tables.h"}
FEATURES = {
    "features/CMakeLists.txt",
    "features/builtin_features.cpp",
    "features/builtin_options.cpp",
}
SUBCOMMANDS = {
    "inspector_cli/commands/CMakeLists.txt",
    "inspector_cli/commands/subcommands.h",
    "inspector_cli/main.cpp",
}
USER_DOCS = {"python/telens/debug/layer_names.py"}  # the docs of a call that the feature hears of
DOCS = {"docs/run_file.md"}  # the columns, for readers in other languages
MOST = 5  # a subcommand is a choice: without one, telens.Run.table() reads the rows


def files_that_name_it() -> set[str]:
    found = set()
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in {".pyc", ".so"} or not path.is_file():
                continue
            if OWN.fullmatch(name) or READERS.fullmatch(name):
                continue
            if NAMED.search(name) or NAMED.search(path.read_text(errors="replace")):
                found.add(name)
    return found


def test_rows_of_a_feature_are_named_in_lists_alone():
    assert files_that_name_it() == TABLES | FEATURES | SUBCOMMANDS | USER_DOCS
    assert len(TABLES | FEATURES | DOCS) <= MOST
    for file in TABLES | FEATURES | SUBCOMMANDS | DOCS:
        assert NAMED.search((ROOT / file).read_text()), file
