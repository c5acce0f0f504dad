"""The JSON of a check: written anew whenever a step begins or ends, so that whatever ends the
check leaves what was known until then. A later check of the same sources, card and torch goes on
from it."""

import json
import re
import subprocess
from pathlib import Path

from gpu_checks.kernel_code import kernel_digests
from gpu_checks.prebuilt import digest_of_files

# Folders of one machine do not belong into a committed result.
MACHINE_FOLDERS = re.compile(r"(?<![\w.$}~*])/(?:home|root|Users|work|opt|mnt|srv)/")
# Without these steps a check has shown nothing, whatever else passed.
ESSENTIAL = "CUDA against CPU"
# The parts of a source tree that decide about results. Documentation does not.
SOURCES = (
    "core",
    "record",
    "hooks",
    "analysis",
    "features",
    "python",
    "samples",
    "configs",
    "tests",
    "benchmarks",
)
SOURCE_FILES = ("CMakeLists.txt", "cmake/*.cmake")
NO_SOURCES = ("__pycache__", "results", ".pytest_cache")


def without_machine_folders(text: str, root: Path) -> str:
    return MACHINE_FOLDERS.sub("~/", text.replace(str(root), "."))


def digest_of_sources(root: Path) -> str:
    """Names the state of the sources, also of a copy without its Git repository."""
    files = [path for folder in SOURCES for path in (root / folder).rglob("*")]
    files += [path for pattern in SOURCE_FILES for path in root.glob(pattern)]
    sources = [
        path
        for path in files
        if path.is_file() and not set(path.relative_to(root).parts) & set(NO_SOURCES)
    ]
    return digest_of_files(root, sources)


def commit_of(root: Path) -> str | None:
    """Where there is a repository; with a + where something differs from it."""
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def as_left(step: dict) -> dict:
    """A step of a check that may have been killed while it ran. What failed before has failed."""
    if step["outcome"] != "running":
        return step
    ended = "the check ended while it ran"
    if failure := step.get("failure"):
        return failure | {"not repeated": ended}
    return {"outcome": "skipped", "reason": ended}


class Report:
    def __init__(
        self,
        folder: Path,
        machine: dict,
        root: Path,
        copies: Path | None = None,
        afresh: bool = False,
        prebuilt: str | None = None,  # the digest of a library that was not built here
    ):
        folder.mkdir(parents=True, exist_ok=True)
        card = re.sub(r"[^a-z0-9]+", "-", str(machine.get("card") or "none").lower()).strip("-")
        self.path = folder / f"gpu-{card}.json"
        self.rows_path = folder / "gpu_benchmarks.json"
        self.copies = copies
        self.machine = machine
        self.root = root
        self.sources = {"digest": digest_of_sources(root), "commit": commit_of(root)}
        self.sources |= {"prebuilt": prebuilt, "kernels": kernel_digests(root)}
        self.steps: dict[str, dict] = {}
        earlier = None if afresh else self.earlier()
        self.calls = 1
        if earlier is None:
            self.rows_path.unlink(missing_ok=True)
        else:
            self.calls = earlier["calls"] + 1
            self.steps = {name: as_left(step) for name, step in earlier["steps"].items()}

    def earlier(self) -> dict | None:
        """What a check of the same sources left here, with the same card, torch and, where it was
        built elsewhere, library."""
        try:
            found = json.loads(self.path.read_text())
            same_sources = all(
                found["sources"][key] == self.sources[key] for key in ("digest", "prebuilt")
            )
            same_machine = all(
                found["machine"].get(key) == self.machine.get(key) for key in ("card", "torch")
            )
            return found if same_sources and same_machine and "calls" in found else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def has_passed(self, name: str) -> bool:
        return self.steps.get(name, {}).get("outcome") == "passed"

    def is_new(self, name: str) -> bool:
        """True if no earlier check ran the step to its end."""
        return not self.has_passed(name) and name not in self.failed

    @property
    def failed(self) -> list[str]:
        return [name for name, step in self.steps.items() if step["outcome"] == "failed"]

    @property
    def passed(self) -> bool:
        essential = [
            step["outcome"] for name, step in self.steps.items() if name.startswith(ESSENTIAL)
        ]
        running = any(step["outcome"] == "running" for step in self.steps.values())
        compared = bool(essential) and set(essential) == {"passed"}
        return compared and not running and not self.failed

    def write(self) -> None:
        report = {
            "passed": self.passed,
            "sources": self.sources,
            "calls": self.calls,
            "machine": self.machine,
            "steps": self.steps,
        }
        if self.rows_path.exists():
            report["benchmarks"] = json.loads(self.rows_path.read_text())
        text = without_machine_folders(json.dumps(report, indent=1), self.root)
        for folder in filter(None, (self.path.parent, self.copies)):
            folder.mkdir(parents=True, exist_ok=True)
            partial = folder / f"{self.path.name}.partial"
            partial.write_text(text + "\n")
            partial.replace(folder / self.path.name)
