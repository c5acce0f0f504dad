"""A number format is named in few product files: its row, quantizer, kernels and public names.

Other code asks core/formats/scheme.h. The limits may only fall; a new name is a new limit here.
docs/decisions/house.md says which files have to name one.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("core", "hooks", "features", "inspector_cli", "python")
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".pyi", ".txt"}
MOST_FILES = {"nvfp4": 29, "mxfp8": 29}


def files_that_name(word: str) -> list[str]:
    return [
        path.relative_to(ROOT).as_posix()
        for folder in PRODUCT
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in SUFFIXES and word in path.read_text().lower()
    ]


@pytest.mark.parametrize("word", MOST_FILES)
def test_a_format_is_named_in_few_files(word):
    files = files_that_name(word)
    assert "core/formats/scheme.h" in files
    assert len(files) <= MOST_FILES[word], "\n".join(files)
