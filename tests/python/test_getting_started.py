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


def train(folder, config: str) -> None:
    (folder / "first_look.yaml").write_text(config)
    (program,) = blocks("python")
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr


def shown(folder, line: str) -> str:
    words = re.sub(r"#.*", "", line).split()
    result = subprocess.run(
        [ROOT / "build/bin/telens", *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_program_trains_and_finds_its_records(tmp_path):
    train(tmp_path, blocks("yaml")[0])
    (commands,) = [block for block in blocks("sh") if block.startswith("telens info logs ")]
    for line in commands.splitlines():
        assert shown(tmp_path, line)
    assert (tmp_path / "first_look.html").stat().st_size > 10_000


def words_of(line: str) -> list[str]:
    """Without numbers and the kernel of a GEMM, in which machines differ."""
    words = line.split("FP8, emulated")[0].split()
    return [word for word in words if word[0].isalpha()]


def test_what_it_shows_of_other_commands_is_what_they_say(tmp_path):
    _, is_it_the_head, second_look, *_ = blocks("yaml")
    train(tmp_path, is_it_the_head + second_look)
    commands = {}
    for text in blocks("text"):
        for line in text.splitlines():
            if line.startswith("$ "):
                output = commands.setdefault(line[2:], [])
            else:
                output.append(line)
    assert [line.split()[1] for line in commands] == [
        "ledger",
        "whatif",
        "whatif",
        "plot",
        "repair",
    ]
    for line, expected in commands.items():
        said = shown(tmp_path, line).splitlines()
        if "repair" in line:  # nothing to do: this run was not killed
            assert said[0].endswith("rank00000.h5: nothing to do")
            continue
        if "plot" in line:
            assert said[:2] == expected[:2]
            assert abs(len(said) - len(expected)) < 10
            continue
        assert sorted(map(words_of, said)) == sorted(map(words_of, expected))


def test_the_configurations_load():
    names = [selected(text) for text in blocks("yaml")]
    assert names == [
        {"first_look"},
        {"is_it_the_head"},
        {"second_look"},
        {"spike", "closer_look"},
    ]
