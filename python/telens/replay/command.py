"""Implements ``telens replay``; the command checks its arguments and starts this module."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import re
import signal
import sys
from collections.abc import Iterator

import torch

from telens import Error, UsageError
from telens.replay import casts, dumps, found, gemm_error

SCHEMA_VERSION = 1
_BAD_INPUT = 2
_OUT_OF_MEMORY = "can't allocate memory"  # torch raises a plain RuntimeError on the CPU

_REPRODUCER = """

if __name__ == "__main__":
    import pathlib

    tensors = pathlib.Path(__file__).with_suffix(".pt")
    for fields in torch.load(tensors, weights_only=True):
        for name in ("casts", "own_scales"):
            fields[name] = tuple(each if each is None else Cast(**each) for each in fields[name])
        gemm = Gemm(**fields)
        print(text(gemm))
        for note in gemm.notes:
            print(note)
        print()
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="telens replay", allow_abbrev=False)
    parser.add_argument("dump", type=pathlib.Path)
    parser.add_argument("--layer", default="")
    parser.add_argument("--gemm", action="append", default=[])
    parser.add_argument("--iterations", default=":")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--cast-format", choices=("E4M3", "E5M2", "HYBRID"))
    parser.add_argument("--recipe", default="")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--emit", type=pathlib.Path)
    return parser


def _bounds(text: str) -> tuple[float, float]:
    first, colon, last = text.partition(":")
    try:
        ends = (int(first) if first else -math.inf, int(last) if last else math.inf)
    except ValueError:
        raise UsageError(f"--iterations '{text}': expected a:b, a:, :b or one iteration") from None
    if not colon:
        return ends[0], ends[0]
    if ends[0] > ends[1]:
        raise UsageError(f"--iterations '{text}': its end is before its beginning")
    return ends


def _select(all_found: list[found.Found], given: argparse.Namespace) -> list[found.Found]:
    try:
        pattern = re.compile(given.layer)
    except re.error as error:
        raise UsageError(f"--layer '{given.layer}': {error}") from None
    for gemm in given.gemm:
        if gemm not in found.TENSORS:
            raise UsageError(f"unknown GEMM '{gemm}'; expected fprop, dgrad or wgrad")
    first, last = _bounds(given.iterations)
    chosen = [
        each
        for each in all_found
        if pattern.search(each.layer)
        and (not given.gemm or each.gemm in given.gemm)
        and first <= each.iteration <= last
        and (given.rank is None or each.rank == given.rank)
    ]
    if not chosen:
        one = all_found[0]
        raise UsageError(
            f"{given.dump}: none of its {len(all_found)} GEMMs fits these filters; one is "
            f"{one.gemm} of {_printable(one.layer)}, iteration {one.iteration}, rank {one.rank}"
        )
    return chosen


def _printable(text: str) -> str:
    """Returns a file name on one line; control and invisible characters are escaped."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _number(value: float) -> float | str:
    """Converts a value to JSON, which does not have infinity."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _json(gemm: gemm_error.Gemm) -> dict:
    figures = gemm_error.figures(gemm)
    for row in figures.rows:
        row.update((name, _number(value)) for name, value in row.items() if name != "part")
    return {
        "casts": [each.format for each in gemm.casts],
        "parts": figures.rows,
        "elements": figures.elements,
        "left_out": figures.left_out,
        "notes": gemm.notes,
    }


def _object(dump: dumps.Dump) -> dict:
    return {
        "path": dump.path,
        "layer": dump.layer,
        "gemm": dump.gemm,
        "iteration": dump.iteration,
        "rank": dump.rank,
        "recipe": dump.recipe,
        "kernel": dump.kernel or None,
    }


def _check_reproducer(path: pathlib.Path) -> None:
    """Checked before the work, which may take long."""
    if path.suffix != ".py":
        raise UsageError(f"--emit {path}: expected the name of a Python script, such as repro.py")
    for each in (path, path.with_suffix(".pt")):
        if each.exists():
            raise UsageError(f"--emit {path}: {each} is there already; choose another name")
    if not path.parent.is_dir():
        raise UsageError(f"--emit {path}: cannot be written: no such folder: {path.parent}")


def _write_reproducer(path: pathlib.Path, gemms: list[gemm_error.Gemm]) -> None:
    tensors = path.with_suffix(".pt")
    source = pathlib.Path(gemm_error.__file__).read_text(encoding="utf-8")
    try:
        torch.save([dataclasses.asdict(gemm) for gemm in gemms], tensors)
        path.write_text(source + _REPRODUCER, encoding="utf-8")
    except (OSError, RuntimeError) as error:
        for each in (path, tensors):
            each.unlink(missing_ok=True)
        raise UsageError(f"--emit {path}: it cannot be written: {error}") from None


def _note(line: str) -> None:
    sys.stdout.flush()
    print(f"telens: {_printable(' '.join(line.split()))}", file=sys.stderr, flush=True)


class _Replay:
    """Runs the requested analysis GEMM by GEMM. A failure skips only that GEMM."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._printed = 0
        self._refusals: list[str] = []
        self._noted: set[str] = set()  # a note that applies to every GEMM is printed once
        self.objects: list[dict] = []
        self.gemms: list[gemm_error.Gemm] = []  # for a reproducer

    def run(self, chosen: list[found.Found]) -> int:
        """Returns the exit code."""
        for each in chosen:
            try:
                self._one(dumps.read(each))
            except Error as error:
                self._refuse(str(error))
            except (MemoryError, RuntimeError) as error:
                if isinstance(error, RuntimeError) and _OUT_OF_MEMORY not in str(error):
                    raise
                path = next(iter(each.files.values()))
                self._refuse(f"{path}: not enough memory for the {each.gemm} in it")
        return _BAD_INPUT if self._refusals else 0

    def _refuse(self, line: str) -> None:
        if line not in self._refusals:
            _note(line)
        self._refusals.append(line)

    def _one(self, dump: dumps.Dump) -> None:
        answer = _object(dump)
        for name, gemm in self._gemms_of(dump):
            if self._given.format == "json":
                answer[name] = _json(gemm)
                if name == "recorded":
                    self.objects.append(answer)
            else:
                self._print(gemm)
            if self._given.emit:
                self.gemms.append(gemm)

    def _gemms_of(self, dump: dumps.Dump) -> Iterator[tuple[str, gemm_error.Gemm]]:
        yield "recorded", casts.recorded(dump)
        if self._given.cast_format or self._given.recipe:
            yield "other_cast", casts.under(dump, self._given.recipe, self._given.cast_format)

    def _print(self, gemm: gemm_error.Gemm) -> None:
        gemm.title = _printable(gemm.title)
        print("\n" if self._printed else "", gemm_error.text(gemm), sep="")
        self._printed += 1
        for note in gemm.notes:
            if note not in self._noted:
                _note(note)
            self._noted.add(note)


def _replay(given: argparse.Namespace) -> int:
    if given.emit:
        _check_reproducer(given.emit)
    if given.recipe:
        casts.check_recipe(given.recipe, f"--recipe {given.recipe}")
    replay = _Replay(given)
    code = replay.run(_select(found.find(given.dump, warn=_note), given))
    if given.emit and replay.gemms:
        _write_reproducer(given.emit, replay.gemms)
    if given.format == "json":
        print(json.dumps({"schema_version": SCHEMA_VERSION, "gemms": replay.objects}))
    sys.stdout.flush()
    return code


@contextlib.contextmanager
def _ctrl_c_ends_the_process() -> Iterator[None]:
    """Ends the program without a traceback."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0, or 2 with a line on stderr."""
    try:
        with _ctrl_c_ends_the_process():
            return _replay(_parser().parse_args(arguments))
    except Error as error:
        _note(str(error))
        return _BAD_INPUT
    except BrokenPipeError:
        # The interpreter flushes again at exit and must not find the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except OSError as error:
        print(f"telens: replay: {error}", file=sys.stderr)
        return _BAD_INPUT
