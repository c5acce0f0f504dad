"""What a check would do, call by call, where there is no GPU: its own runner and report, under a
clock that goes on by what each step is expected to take."""

import dataclasses
import tempfile
from pathlib import Path

from gpu_checks.report import Report
from gpu_checks.runner import OutOfTime, Runner, Step, in_order

MEBIBYTE = 1 << 20
LARGEST_COPY = 64  # MiB: what a check carries to another machine
MOST_CALLS = 12


class Clock:
    """Also stands in for the commands of a runner, which gives it each step's deadline."""

    def __init__(self):
        self.now = 0.0
        self.deadline = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> float:
        """What of it the deadline leaves undone."""
        spent = min(seconds, self.deadline - self.now)
        self.now += spent
        return seconds - spent


def rehearsed(step: Step, clock: Clock, left: dict[str, float]) -> Step:
    """The step, which takes time and does nothing. `left`: seconds of those that were cut short."""

    def action():
        undone = clock.spend(left.get(step.name, step.expected))
        if undone > 0:
            if step.keeps_parts:
                left[step.name] = undone
            raise OutOfTime("cut short", "")

    return dataclasses.replace(step, action=action)


def rehearse(steps: list[Step], machine: dict, root: Path, limit: float) -> int:
    """Prints the calls; returns how many there are."""
    left: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for call in range(1, MOST_CALLS + 1):
            clock = Clock()
            report = Report(Path(folder), machine, root)
            kept = [
                step.name for step in steps if report.has_passed(step.name) and not step.prepares
            ]
            print(
                f"call {call}, {limit:.0f} s; {len(kept)} steps kept from earlier calls", flush=True
            )
            Runner(report, clock, limit, clock).run(
                [rehearsed(step, clock, left) for step in steps]
            )
            if not any(not step.prepares for step in in_order(steps, report)):
                print(f"{call} calls" + (", passed" if report.passed else ""))
                return call
    raise ValueError(f"not done in {MOST_CALLS} calls of {limit:.0f} s")


def size_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())


def print_sizes(tree: dict[str, int]) -> None:
    """`tree`: bytes of what travels."""
    for name, size in tree.items():
        print(f"{size / MEBIBYTE:8.1f} MiB  {name}")
    total = sum(tree.values()) / MEBIBYTE
    print(f"{total:8.1f} MiB  in all, of at most {LARGEST_COPY}")
    if total > LARGEST_COPY:
        raise ValueError(f"{total:.1f} MiB are more than {LARGEST_COPY}: carry less")
