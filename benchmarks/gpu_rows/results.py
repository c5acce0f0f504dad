"""Measures rows one by one and keeps what came of each, in a file that is never half written."""

import json
from pathlib import Path

from gpu_machine import output_of

from gpu_rows.bench import Bench
from gpu_rows.row import CannotRun, Row

CLOCKS = "clocks.sm,clocks.mem,temperature.gpu,power.draw"
FIRST_LINES = 4  # lines of an error; a stack follows them


def clocks() -> str:
    """Just after the row, while the card is still as it was."""
    return output_of("nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader")


def measure(row: Row, bench: Bench, card: str) -> dict:
    """The row with its outcome; whatever its code throws is its own affair."""
    described = row.described() | {"card": card}
    try:
        measured = row.measure(bench)
        seen = clocks()
        bench.settle()
    except CannotRun as reason:
        return described | {"outcome": "skipped", "reason": str(reason)}
    except Exception as error:
        lines = "\n".join(str(error).splitlines()[:FIRST_LINES])
        return described | {"outcome": "failed", "reason": f"{type(error).__name__}: {lines}"}
    if bench.rehearse:
        return described | {"outcome": "rehearsed"}
    value = row.value(measured)
    return described | {
        "outcome": "measured",
        "value": value,
        "met": row.target and row.target.is_met(value, card),
        row.unit: measured.ours,
        f"peer_{row.unit}": measured.theirs,
        "rate": measured.rate,
        "details": measured.details,
        "clocks": seen,
    }


def line(row: dict) -> str:
    if row["outcome"] != "measured":
        reason = f": {row['reason']}" if "reason" in row else ""
        return f"{row['outcome']:9} {row['name']}{reason}"
    target = "" if row["target"] is None else f" (target {row['target']})"
    amounts = f"{row['rate']}"
    if "seconds" in row:
        ours, theirs = (f"{1e6 * row[key]:.1f} us" for key in ("seconds", "peer_seconds"))
        amounts = f"{ours} ({row['rate']}) beside {theirs}"
    judged = {True: "met", False: "MISSED", None: ""}[row["met"]]
    return (
        f"{judged:9} {row['name']}: {row['value']:.3f} {row['value_is']}{target}: {amounts}; "
        f"peer: {row['peer']}"
    )


class Results:
    """Rows by name, on top of those that the file has from other groups."""

    def __init__(self, path: Path | None):
        self.path = path
        self.rows = {}
        if path and path.exists():
            self.rows = {row["name"]: row for row in json.loads(path.read_text())}

    def has(self, name: str) -> bool:
        return self.rows.get(name, {}).get("outcome") == "measured"

    def add(self, row: dict) -> None:
        self.rows[row["name"]] = row
        print(line(row), flush=True)
        if self.path:
            partial = self.path.with_suffix(".partial")
            partial.write_text(json.dumps(list(self.rows.values()), indent=1) + "\n")
            partial.replace(self.path)
