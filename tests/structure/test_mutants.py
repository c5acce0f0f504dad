"""Every mutant still applies: what it breaks stands exactly once in its file."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "mutants"))

from mutants import MUTANTS  # noqa: E402


def test_every_mutant_applies_exactly_once():
    missing = [
        (mutant.promise, mutant.before)
        for mutant in MUTANTS
        if (ROOT / mutant.file).read_text().count(mutant.before) != 1
    ]
    assert MUTANTS
    assert missing == []
