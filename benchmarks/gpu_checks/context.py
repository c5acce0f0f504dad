"""What the steps of a check share: folders, jobs, and the environment of what they run."""

import os
from dataclasses import dataclass
from pathlib import Path

from gpu_checks.runner import Commands

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Context:
    out: Path
    build: Path
    dependencies: Path | None
    jobs: int
    nvcc: str
    commands: Commands | None = None

    @property
    def library(self) -> Path:
        return self.build / "lib/libtelens.so"

    @property
    def site(self) -> Path:
        """Where the carried wheels are unpacked."""
        return self.build / "site"

    def environment(self) -> dict[str, str]:
        paths = [str(self.site), str(self.build / "python"), os.environ.get("PYTHONPATH")]
        return os.environ | {
            "TELENS_LIBRARY": str(self.library),
            "TELENS_PACKAGES": str(self.build / "python"),
            "TELENS_GPT": str(self.build / "bin/gpt"),
            "TELENS_COMMAND": str(self.build / "bin/telens"),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",  # what a killed program printed is in the log
        }
