"""The JSON of a check: written anew whenever a step begins or ends, so that whatever ends the
check leaves what was known until then."""

import json
import re
from pathlib import Path

# Folders of one machine do not belong into a committed result.
MACHINE_FOLDERS = re.compile(r"(?<![\w.$}~*])/(?:home|root|Users|work|opt|mnt|srv)/")
# Without this step a check has shown nothing, whatever else passed.
ESSENTIAL = "CUDA against CPU"


def without_machine_folders(text: str, root: Path) -> str:
    return MACHINE_FOLDERS.sub("~/", text.replace(str(root), "."))


class Report:
    def __init__(self, folder: Path, machine: dict, root: Path):
        folder.mkdir(parents=True, exist_ok=True)
        card = re.sub(r"[^a-z0-9]+", "-", str(machine.get("card") or "none").lower()).strip("-")
        self.path = folder / f"gpu-{card}.json"
        self.rows_path = folder / "gpu_benchmarks.json"
        self.machine = machine
        self.root = root
        self.steps: dict[str, dict] = {}
        self.rows_path.unlink(missing_ok=True)  # of an earlier check

    @property
    def failed(self) -> list[str]:
        return [name for name, step in self.steps.items() if step["outcome"] == "failed"]

    @property
    def passed(self) -> bool:
        essential = self.steps.get(ESSENTIAL, {}).get("outcome")
        running = any(step["outcome"] == "running" for step in self.steps.values())
        return essential == "passed" and not running and not self.failed

    def write(self) -> None:
        report = {"passed": self.passed, "machine": self.machine, "steps": self.steps}
        if self.rows_path.exists():
            report["benchmarks"] = json.loads(self.rows_path.read_text())
        text = without_machine_folders(json.dumps(report, indent=1), self.root)
        partial = self.path.with_suffix(".partial")
        partial.write_text(text + "\n")
        partial.replace(self.path)
