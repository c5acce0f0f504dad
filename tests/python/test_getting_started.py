"""README.md's program and the tutorial docs/getting_started.md run and print what the pages
show.
"""

import os
import re
import subprocess
import sys

from config_questions import ROOT
from test_config_docs import BLOCK, selected

BLOCKS = BLOCK.findall((ROOT / "docs" / "getting_started.md").read_text())
README = {kind: text for kind, _, text in BLOCK.findall((ROOT / "README.md").read_text())}
BUG = re.compile(r"^    if step >= 20:.*\n.*\n", re.MULTILINE)


def blocks(kind: str) -> list[str]:
    return [text for found, _, text in BLOCKS if found == kind]


def train(folder, program: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr


def telens(folder, line: str, exit_code: int = 0) -> str:
    words = re.sub(r"#.*", "", line).split()
    result = subprocess.run(
        [ROOT / "build/bin/telens", *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == exit_code, result.stderr
    return result.stdout


def words_of(text: str) -> list[str]:
    """Lines of words without numbers, which differ between machines."""
    return sorted(
        " ".join(re.findall(r"(?<![\w.-])[a-zA-Z_%]\S*", line)) for line in text.splitlines()
    )


def shown() -> dict[str, str]:
    """The commands of the tutorial with the outputs that it shows."""
    return dict(text.removeprefix("$ ").split("\n", 1) for text in blocks("text"))


def test_tutorial_finds_its_bug_as_shown(tmp_path):
    (tmp_path / "first_look.yaml").write_text(blocks("yaml")[0])
    (program,) = blocks("python")
    train(tmp_path, program)
    assert [line.split()[1] for line in shown()] == ["diagnose", "stats"]
    for line, expected in shown().items():
        answer = telens(tmp_path, line, exit_code=int("diagnose" in line))
        assert words_of(answer) == words_of(expected)
    (commands,) = [block for block in blocks("sh") if block.startswith("telens info logs ")]
    for line in commands.splitlines():
        assert telens(tmp_path, line)
    assert (tmp_path / "report.html").stat().st_size > 10_000
    healthy, removed = BUG.subn("", program)
    assert removed == 1
    train(tmp_path, healthy)
    assert "no problems found" in telens(tmp_path, "telens diagnose logs")


def test_readme_program_records_three_tensors_of_two_layers(tmp_path):
    (tmp_path / "watch.yaml").write_text(README["yaml"])
    train(tmp_path, README["python"])
    for line in ("telens stats logs", "telens diagnose logs"):
        assert line in (ROOT / "README.md").read_text()
        assert telens(tmp_path, line)
    rows = telens(tmp_path, "telens stats logs --format csv").splitlines()
    assert len(rows) == 1 + 6


def test_tutorial_config_loads():
    assert [selected(text) for text in blocks("yaml")] == [{"first_look"}]
