"""Comments in plain English: no room has a mark that comment_lint.py looks for."""

import comment_lint
import pytest

ROOMS = (
    "core",
    "hooks",
    "features",
    "inspector_cli",
    "tests",
    "python",
    "samples",
    "benchmarks",
    "cmake",
)


@pytest.mark.parametrize("room", ROOMS)
def test_comments_are_plain_english(room):
    found = []
    for path in sorted((comment_lint.ROOT / room).rglob("*")):
        if path.suffix in (*comment_lint.CPP, ".py"):
            name = path.relative_to(comment_lint.ROOT)
            found += [f"{name}:{line}: {words}" for line, words in comment_lint.complaints(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("int a;  // Whoever calls it.\n", 1),
        ("// What a forward is decided by.\nint a;\n", 1),
        ("// A recipe, of\n// which there are five.\n", 0),
        ("int a;  //\n", 1),
        ('auto a = "https://x";\n', 0),
        ("// The color of a neighbour.\n", 1),
        ("// One paragraph.\n//\n// And another.\n", 0),
    ],
)
def test_the_marks_are_found(tmp_path, text, marks):
    path = tmp_path / "a.cpp"
    path.write_text(text)
    assert len(list(comment_lint.complaints(path))) == marks


def test_a_comment_of_python_is_read_as_one(tmp_path):
    path = tmp_path / "a.py"
    path.write_text('a = "# nobody"  # of the last step\n')
    assert [line for line, _ in comment_lint.complaints(path)] == [1]
