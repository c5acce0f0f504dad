"""Asks the C++ configuration (tests/hooks/resolve_config.cpp) from Python."""

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = Path(os.environ.get("TELENS_BUILD_DIR", ROOT / "build"))


def ask(questions: list[dict]) -> list[dict]:
    """Returns one answer for each question, in the same order."""
    program = BUILD / "tests" / "resolve_config"
    done = subprocess.run(
        [program],
        input=json.dumps(questions, ensure_ascii=False),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(questions)
    return answers
