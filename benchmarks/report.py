"""Rows of a benchmark report: the table that people read and the JSON that is kept."""

import json
import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Target:
    """What a value is held against: `at_most` or `at_least`."""

    sense: str
    value: float

    def met_by(self, value):
        return value <= self.value if self.sense == "at_most" else value >= self.value

    def __str__(self):
        return f"{'<=' if self.sense == 'at_most' else '>='} {self.value:g}"


def at_most(value):
    return Target("at_most", value)


def at_least(value):
    return Target("at_least", value)


@dataclass
class Row:
    """One benchmark. `samples`: what `value` was computed from, by contender. `if_missed`: why the
    target cannot be met on such a machine, as measured; kept as `reason` where it was missed."""

    name: str
    value: float
    unit: str
    target: Target | None
    samples: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""
    if_missed: str = ""

    @property
    def met(self):
        return None if self.target is None else self.target.met_by(self.value)

    @property
    def reason(self):
        """Why the target was missed; "" where it was met, or there is none."""
        if self.met is not False:
            return ""
        return self.if_missed or "unknown: profile it, and write down here what was found"

    def cells(self, quick):
        """Name, value, target and verdict, as the table shows them."""
        verdict = {True: "met", False: "MISSED", None: ""}[self.met]
        value = f"{self.value:.4g} {self.unit}"
        return self.name, value, str(self.target or ""), "" if quick else verdict

    def line(self, quick):
        return "  ".join(cell for cell in self.cells(quick) if cell)

    def as_json(self):
        row = asdict(self) | {
            "target": str(self.target) if self.target else None,
            "met": self.met,
            "reason": self.reason,
        }
        keys = ("name", "value", "unit", "target", "met", "reason", "note", "samples")
        return {key: row[key] for key in keys}


@dataclass
class Report:
    """All rows of one run on one machine. `not_run`: the names of rows that this machine cannot
    run, each with the reason."""

    quick: bool
    rows: list[Row] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)

    def table(self):
        cells = [("benchmark", "value", "target", "")]
        cells += [row.cells(self.quick) for row in self.rows]
        widths = [max(len(line[column]) for line in cells) for column in range(4)]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
            for line in cells
        ]
        lines.insert(1, "-" * max(len(line) for line in lines))
        lines += [f"not run: {name}: {reason}" for name, reason in self.not_run.items()]
        lines += [f"note: {row.name}: {row.note}" for row in self.rows if row.note]
        if not self.quick:
            lines += [f"missed: {row.name}: {row.reason}" for row in self.rows if row.reason]
        return "\n".join(lines)

    def write(self, folder):
        """All rows, in place of what was measured on such a machine before."""
        document = describe_measurement() | {
            "rows": [row.as_json() for row in self.rows],
            "not_run": self.not_run,
        }
        return write_document(folder, document)

    def update(self, folder):
        """These rows among those that stand in the machine's file: in place of their namesakes or
        behind the last. Each then says of which commit it is, and when it was measured."""
        measurement = describe_measurement()
        path = path_in(folder, measurement["machine"])
        document = json.loads(path.read_text()) if path.exists() else measurement | EMPTY
        origin = {key: measurement[key] for key in ("versions", "commit", "time")}
        rows = {row["name"]: row for row in document["rows"]}
        rows |= {row.name: row.as_json() | {"measured": origin} for row in self.rows}
        kept = {
            name: reason
            for name, reason in (document["not_run"] | self.not_run).items()
            if name not in rows
        }
        return write_document(folder, document | {"rows": list(rows.values()), "not_run": kept})


EMPTY = {"rows": [], "not_run": {}}


class Journal:
    """The groups that an unfinished run has measured: one JSON object per line, written after each
    group. `groups`: rows and reasons for missing rows, by the group's name."""

    def __init__(self, path, rounds):
        self.path = path
        self.groups = {}
        self.head = {"commit": describe_commit(), "versions": describe_versions()}
        self.head |= {"machine": describe_machine()["name"], "rounds": rounds}

    def resume(self):
        """Reads the file if it is about this commit, these versions and this machine."""
        if not self.path.exists():
            return
        lines = self.path.read_text().splitlines()
        # A run that was killed may have left half of its last line.
        lines = [line for line in lines if line.endswith("}")]
        entries = [json.loads(line) for line in lines]
        if not entries or entries[0] != self.head or self.head["commit"].endswith("+changes"):
            self.path.unlink()
            return
        self.path.write_text("\n".join(lines) + "\n")
        for entry in entries[1:]:
            rows = [
                Row(**row | {"target": Target(**row["target"]) if row["target"] else None})
                for row in entry["rows"]
            ]
            self.groups[entry["group"]] = rows, entry["not_run"]

    def add(self, group, rows, not_run):
        """Appends a group."""
        if not self.groups:
            self.path.write_text(json.dumps(self.head) + "\n")
        self.groups[group] = rows, not_run
        entry = {"group": group, "rows": [asdict(row) for row in rows], "not_run": not_run}
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def remove(self):
        self.path.unlink(missing_ok=True)


def describe_measurement():
    return {
        "machine": describe_machine(),
        "versions": describe_versions(),
        "commit": describe_commit(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def path_in(folder, machine):
    return folder / f"{machine['name']}.json"


def write_document(folder, document):
    path = path_in(folder, document["machine"])
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def cpu_flags():
    found = re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return set(found[1].split()) if found else set()


def describe_machine():
    info = Path("/proc/cpuinfo").read_text()
    model = (re.search(r"^model name\s*: (.*)$", info, re.M) or ["", "unknown CPU"])[1].strip()
    flags = cpu_flags()
    simd = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    memory = re.search(r"^MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.M)[1]
    cores = os.cpu_count()
    kind = simd[-1] if simd else platform.machine()
    words = re.sub(r"\(R\)|\(TM\)|CPU|Processor", " ", model).lower()
    name = "-".join(re.findall(r"[a-z0-9.]+", words))
    return {
        "name": f"{name}-{kind}-{cores}-cores",
        "cpu": model,
        "simd": simd,
        "cores": cores,
        "memory_gib": round(int(memory) / 2**20, 1),
        "system": platform.platform(),
    }


def describe_versions():
    import torch

    compiler = subprocess.run(["c++", "--version"], capture_output=True, text=True, check=False)
    project = (ROOT / "CMakeLists.txt").read_text()
    version = re.search(r"project\(telens VERSION ([\d.]+)", project)[1]
    return {
        "telens": version,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "compiler": compiler.stdout.split("\n")[0],
    }


def describe_commit():
    """The commit that was measured; "+changes" where the tree had changes on top of it."""

    def git(*arguments):
        return subprocess.run(
            ["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False
        ).stdout.strip()

    commit = git("rev-parse", "HEAD")
    return commit + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
