"""Each folder of hooks has one namespace."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The namespaces in which a file defines something, without those of other rooms (`namespace at {`
# etc.).
NAMESPACE = re.compile(r"^namespace (telens[\w:]*) \{", re.MULTILINE)

# Neither defines anything: declarations of another room's types, and comments and empty lines.
DECLARATION = re.compile(r"^(?:struct|class) \w+;.*\n|^ *//.*\n|^\n", re.MULTILINE)
EMPTY = re.compile(r"^namespace [\w:]+ \{\n\}.*\n", re.MULTILINE)
NESTED = re.compile(r"^namespace telens \{\nnamespace (\w+) \{", re.MULTILINE)

# The session API is in telens::debug wherever it is defined: programs include it from hooks/.
SESSION_API = {"debug.h", "debug.cpp", "session_options.h", "finding.h"}


def namespaces(text):
    text = EMPTY.sub("", DECLARATION.sub("", text))
    return NAMESPACE.findall(NESTED.sub(r"namespace telens::\1 {", text))


@pytest.mark.parametrize(
    ("folder", "namespace"),
    [
        ("hooks", "telens"),
        ("hooks/config", "telens::config"),
        ("record/rows", "telens::record"),
        ("hooks/session", "telens::debug"),
        ("record", "telens::record"),
    ],
)
def test_a_folder_has_one_namespace(folder, namespace):
    found = {}
    for path in (ROOT / folder).iterdir():
        if path.suffix not in {".h", ".cpp"} or path.name in SESSION_API:
            continue
        for name in namespaces(path.read_text()):
            found.setdefault(name, []).append(path.name)
    found.pop("telens::record::hdf5", None)  # HDF5 as C++, which the rest of the room uses
    assert set(found) == {namespace}, found
