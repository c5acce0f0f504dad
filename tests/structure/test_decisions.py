"""docs/internals/decisions.md lists the title of every decision."""

import decisions_index


def test_the_index_is_up_to_date():
    made = "run `python tests/structure/decisions_index.py`"
    assert decisions_index.PAGE.read_text() == decisions_index.render(), made


def test_every_page_of_decisions_is_in_the_index():
    pages = {path.stem for path in (decisions_index.DOCS / "decisions").glob("*.md")}
    assert pages == set(decisions_index.ROOMS)


def test_every_decision_begins_with_words_for_the_index():
    for room in decisions_index.ROOMS:
        text = (decisions_index.DOCS / "decisions" / f"{room}.md").read_text()
        entries = [line for line in text.splitlines() if line.startswith(("- ", "## "))]
        assert len(entries) == len(decisions_index.DECISION.findall(text)) > 0, room
