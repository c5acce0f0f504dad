"""Programs that tests of the packages run."""

import subprocess
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build"


def run(*command: object, **options) -> str:
    """Returns what the program prints. If it fails, the error shows the ends of stdout and
    stderr.
    """
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout
