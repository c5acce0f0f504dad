"""Runs the steps of a check one after the other, each and all of them within a time limit; commands
may be begun before the step that waits for them."""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_checks.report import Report

LAST_LINES = 15  # lines of a failed command, for the report
LEAST_SECONDS = 5  # a step with less time left is not begun


class Skipped(Exception):
    """A step that this machine cannot run; the message is the reason."""


class Failed(Exception):
    """A command that failed or ran out of time; the message says which and how."""

    def __init__(self, message: str, output: str = ""):
        super().__init__(message)
        self.output = output  # all of it
        self.details: object = None  # for the report


class OutOfTime(Failed):
    """A command that was killed at its deadline, with its output until then."""


@dataclass(frozen=True)
class Step:
    name: str
    seconds: float  # at most
    action: Callable[[], object]  # returns details for the report
    needs: tuple[str, ...] = ()  # steps without which it is pointless
    expected: float = 0  # seconds, for rehearsals
    keeps_parts: bool = False  # a later check goes on within it
    prepares: bool = False  # the machine: done in every check, whatever an earlier one did


class Commands:
    """Runs programs. What they print goes straight into the log, so that it survives a kill."""

    def __init__(self, log: Path, environment: Callable[[], dict[str, str]], root: Path):
        self.log = log
        self.environment = environment
        self.root = root
        self.deadline = math.inf  # on the monotonic clock
        self.begun: dict[tuple[str, ...], tuple[subprocess.Popen, Path]] = {}
        self.parts: list[Path] = []  # commands that run beside each other write them
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()  # keeps the lines of an earlier check

    def time_left(self) -> float:
        return self.deadline - time.monotonic()

    def begin(self, *command, extra: dict[str, str] | None = None) -> None:
        """Starts a command that a later run() of the same words waits for."""
        words = words_of(command)
        if words not in self.begun:
            # An earlier check that was killed may have left one of that name.
            part = self.log.with_name(f"{self.log.name}.{len(self.parts)}")
            part.unlink(missing_ok=True)
            self.parts.append(part)
            self.begun[words] = self.start(words, part, extra), part

    def stop(self) -> None:
        """Kills what was begun and never waited for."""
        for process, part in self.begun.values():
            kill(process)
            self.take_over(part)
        self.begun.clear()

    def run(self, *command, extra: dict[str, str] | None = None) -> str:
        """The command's output. Throws if it fails or if the deadline comes first."""
        words = words_of(command)
        begun = self.begun.pop(words, None)
        if begun is None:
            with self.log.open("ab") as log:
                start = log.tell()
            code = self.wait(self.start(words, self.log, extra))
        else:
            code = self.wait(begun[0])
            start = self.take_over(begun[1])
        with self.log.open("rb") as log:
            log.seek(start)
            output = log.read().decode(errors="replace").partition("\n")[2]
        if code != 0:
            end = "\n".join(output.splitlines()[-LAST_LINES:])
            if code is None:
                raise OutOfTime(f"{Path(words[0]).name} ran out of time:\n{end}", output)
            raise Failed(f"{Path(words[0]).name} exited {code}:\n{end}", output)
        return output

    def start(self, words: tuple[str, ...], log: Path, extra: dict | None) -> subprocess.Popen:
        with log.open("ab") as printed:
            printed.write(f"$ {' '.join(words)}\n".encode())
            printed.flush()
            # A process group of its own: what the command started is killed with it.
            return subprocess.Popen(
                words,
                cwd=self.root,
                env=self.environment() | (extra or {}),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def take_over(self, part: Path) -> int:
        """Moves what a command printed to the end of the log; returns where it begins there."""
        with self.log.open("ab") as log:
            start = log.tell()
            log.write(part.read_bytes())
        part.unlink()
        return start

    def wait(self, process: subprocess.Popen) -> int | None:
        """The exit status; None if the deadline came first."""
        left = self.time_left()
        try:
            return process.wait(None if math.isinf(left) else max(left, 0))
        except subprocess.TimeoutExpired:
            return None
        finally:
            kill(process)


def words_of(command) -> tuple[str, ...]:
    return tuple(str(part) for part in command)


def kill(process: subprocess.Popen) -> None:
    """With all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def in_order(steps: list[Step], report: Report) -> list[Step]:
    """What is left to do. A step that failed may fail again, and takes no time from the others."""
    left = [step for step in steps if step.prepares or not report.has_passed(step.name)]
    return sorted(left, key=lambda step: step.name in report.failed and not step.prepares)


def failed(error: Exception) -> dict:
    named = "" if isinstance(error, Failed) else f"{type(error).__name__}: "
    details = getattr(error, "details", None)
    return {"outcome": "failed", "reason": f"{named}{error}"} | (
        {"details": details} if details else {}
    )


def failure_in(step: dict) -> dict | None:
    """How a step failed in an earlier check, also if it was begun again and not ended."""
    return step if step["outcome"] == "failed" else step.get("failure")


def repeated(failure: dict | None, outcome: dict) -> dict:
    """A failure stays one until the step has run to its end again."""
    if failure is None or outcome["outcome"] != "skipped":
        return outcome
    return failure | {"not repeated": outcome["reason"]}


class Runner:
    def __init__(self, report: Report, commands: Commands, limit: float, clock=time.monotonic):
        self.report = report
        self.commands = commands
        self.limit = limit
        self.clock = clock
        self.start = clock()
        self.left: list[str] = []  # steps for which no time was left

    def run(self, steps: list[Step]) -> None:
        """Every step, whatever becomes of the others, but what an earlier check passed; what failed
        there comes last. A signal ends it after the report."""
        for step in in_order(steps, self.report):
            before = self.report.steps.get(step.name)
            failure = failure_in(before) if before else None
            running = {"outcome": "running"} | ({"failure": failure} if failure else {})
            self.report.steps[step.name] = running
            self.report.write()
            start = self.clock()
            try:
                outcome = self.outcome_of(step)
            except KeyboardInterrupt:
                self.end(step, start, {"outcome": "failed", "reason": "stopped by a signal"})
                raise
            self.end(step, start, repeated(failure, outcome))

    def end(self, step: Step, start: float, outcome: dict) -> None:
        outcome.setdefault("seconds", round(self.clock() - start, 1))
        self.report.steps[step.name] = outcome
        self.report.write()
        print(f"{outcome['outcome']:8} {outcome['seconds']:7.1f} s  {step.name}", flush=True)
        for line in str(outcome.get("reason", "")).splitlines():
            print(f"  {line}", flush=True)
        if "not repeated" in outcome:
            print(f"  not repeated: {outcome['not repeated']}", flush=True)

    def outcome_of(self, step: Step) -> dict:
        missing = [name for name in step.needs if not self.report.has_passed(name)]
        if missing:
            return {"outcome": "skipped", "reason": f"needs '{missing[0]}', which did not pass"}
        left = self.limit - (self.clock() - self.start)
        if left < LEAST_SECONDS:
            self.left.append(step.name)
            return {
                "outcome": "skipped",
                "reason": f"no time left of {self.limit:.0f} s (--limit)",
            }
        self.commands.deadline = self.clock() + min(step.seconds, left)
        try:
            details = step.action()
        except Skipped as reason:
            return {"outcome": "skipped", "reason": str(reason)}
        except OutOfTime as error:
            if left >= step.seconds:
                return failed(error)
            # It had less time than it was promised: that says nothing of what it ran.
            self.left.append(step.name)
            cut = f"cut short after {left:.0f} s by the limit of {self.limit:.0f} s (--limit)"
            return {"outcome": "skipped", "reason": cut}
        except Exception as error:  # the other steps are still worth their time
            return failed(error)
        return {"outcome": "passed"} | ({"details": details} if details else {})
