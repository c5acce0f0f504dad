"""The program and the configurations of docs/getting_started.md run as they stand there."""

import os
import re
import subprocess
import sys

from config_questions import ROOT
from test_config_docs import BLOCK, selected

BLOCKS = BLOCK.findall((ROOT / "docs" / "getting_started.md").read_text())


def blocks(kind: str) -> list[str]:
    return [text for found, _, text in BLOCKS if found == kind]


def test_the_program_trains_and_finds_its_records(tmp_path):
    (tmp_path / "first_look.yaml").write_text(blocks("yaml")[0])
    (program,) = blocks("python")
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    command = ROOT / "build/bin/telens"
    for line in blocks("sh")[1].splitlines():
        words = re.sub(r"#.*", "", line).split()
        shown = subprocess.run(
            [command, *words[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout or "--out" in words
    assert (tmp_path / "first_look.html").stat().st_size > 10_000


def test_the_configurations_load():
    names = [selected(text) for text in blocks("yaml")]
    assert names == [{"first_look"}, {"is_it_the_head"}, {"spike", "closer_look"}]
