"""The work of ``telens replay``, which checks the command line and starts it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import sys

import torch

from telens import Error, UsageError
from telens.replay import casts, dumps, gemm_error

SCHEMA_VERSION = 1
_BAD_INPUT = 2

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
        raise UsageError(f"--iterations '{text}': its end lies before its beginning")
    return ends


def _select(found: list[dumps.Found], given: argparse.Namespace) -> list[dumps.Found]:
    try:
        pattern = re.compile(given.layer)
    except re.error as error:
        raise UsageError(f"--layer '{given.layer}': {error}") from None
    for gemm in given.gemm:
        if gemm not in dumps.TENSORS:
            raise UsageError(f"there is no GEMM '{gemm}'; expected fprop, dgrad or wgrad")
    first, last = _bounds(given.iterations)
    chosen = [
        each
        for each in found
        if pattern.search(each.layer)
        and (not given.gemm or each.gemm in given.gemm)
        and first <= each.iteration <= last
        and (given.rank is None or each.rank == given.rank)
    ]
    if not chosen:
        one = found[0]
        raise UsageError(
            f"{given.dump}: none of its {len(found)} GEMMs fits these filters; one is {one.gemm} "
            f"of {_printable(one.layer)}, iteration {one.iteration}, rank {one.rank}"
        )
    return chosen


def _printable(text: str) -> str:
    """A name of a file on one line; what acts on a terminal or hides becomes an escape."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _number(value: float) -> float | str:
    """As JSON takes it, which has no infinity."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _json(gemm: gemm_error.Gemm) -> dict:
    split = gemm_error.split_error(gemm)
    rows = gemm_error.figures(split)
    for row in rows:
        row.update((name, _number(value)) for name, value in row.items() if name != "part")
    return {
        "casts": [each.format for each in gemm.casts],
        "parts": rows,
        "elements": split.exact.numel(),
        "left_out": split.left_out,
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


def _write_reproducer(path: pathlib.Path, gemms: list[gemm_error.Gemm]) -> None:
    if path.suffix != ".py":
        raise UsageError(f"--emit {path}: expected the name of a Python script, such as repro.py")
    tensors = path.with_suffix(".pt")
    for each in (path, tensors):
        if each.exists():
            raise UsageError(f"--emit {path}: {each} is there already; choose another name")
    source = pathlib.Path(gemm_error.__file__).read_text(encoding="utf-8")
    try:
        torch.save([dataclasses.asdict(gemm) for gemm in gemms], tensors)
        path.write_text(source + _REPRODUCER, encoding="utf-8")
    except (OSError, RuntimeError) as error:
        raise UsageError(f"--emit {path}: it cannot be written: {error}") from None


def _replay(given: argparse.Namespace) -> None:
    chosen = _select(dumps.find(given.dump), given)
    asks_for_cast = bool(given.cast_format or given.recipe)
    objects, gemms = [], []
    for number, found in enumerate(chosen):
        dump = dumps.read(found)
        both = [casts.recorded(dump)]
        if asks_for_cast:
            both.append(casts.under(dump, given.recipe, given.cast_format))
        if given.emit:
            gemms += both
        if given.format == "json":
            names = ("recorded", "other_cast")
            objects.append(_object(dump) | dict(zip(names, map(_json, both), strict=False)))
            continue
        for gemm in both:
            gemm.title = _printable(gemm.title)
            print("\n" if number or gemm is not both[0] else "", end="")
            print(gemm_error.text(gemm))
            sys.stdout.flush()
            for note in gemm.notes:
                print(f"telens: {_printable(note)}", file=sys.stderr)
    if given.emit:
        _write_reproducer(given.emit, gemms)
    if given.format == "json":
        print(json.dumps({"schema_version": SCHEMA_VERSION, "gemms": objects}))


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0, or 2 with a line on stderr."""
    try:
        _replay(_parser().parse_args(arguments))
        sys.stdout.flush()
    except (Error, MemoryError) as error:
        message = str(error) or "there is not enough memory for this GEMM"
        print(f"telens: {_printable(' '.join(message.split()))}", file=sys.stderr)
        return _BAD_INPUT
    except BrokenPipeError:
        # The interpreter flushes once more at its end, which is to find no pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except OSError as error:
        print(f"telens: replay: {error}", file=sys.stderr)
        return _BAD_INPUT
    return 0
