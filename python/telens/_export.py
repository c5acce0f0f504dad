"""Copies the numbers of a run to an experiment tracker: the program of ``telens export``."""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import sys
from collections.abc import Iterator

from telens import Error, Run, UsageError, open_run
from telens.attach.trackers import PREFIX, Tracker, tracker_of

_BAD_INPUT = 2


def _numbers(run: Run, given: argparse.Namespace) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields each iteration and its numbers by name, as one rank recorded them."""
    rank = int(min(run.segments["rank"])) if given.rank is None else given.rank
    tables = []
    for statistic in given.stat or [None]:
        rows = run.records(layer=given.layer, statistic=statistic, rank=rank)
        gemms = rows["gemm"].astype(object).fillna("")
        parts = rows["layer"], rows["tensor"], gemms, rows["statistic"]
        names = ["_".join(filter(None, each)) for each in zip(*parts, strict=True)]
        tables.append((rows["iteration"], names, rows["value"]))
    if given.layer is None and not given.stat:
        scalars = run.scalars
        scalars = scalars[scalars["rank"] == rank]
        tables.append((scalars["iteration"], scalars["name"], scalars["value"]))
    found: dict[int, dict[str, float]] = {}
    for table in tables:
        for iteration, name, value in zip(*table, strict=True):
            found.setdefault(int(iteration), {})[PREFIX + name] = float(value)
    yield from sorted(found.items())


@contextlib.contextmanager
def _opened(given: argparse.Namespace, run_id: str) -> Iterator[list[Tracker]]:
    """Opens the trackers that the command line names."""
    with contextlib.ExitStack() as stack:
        targets = []
        if given.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            targets.append(stack.enter_context(SummaryWriter(given.tensorboard)))
        if given.wandb:
            import wandb

            run = wandb.init(project=given.wandb, name=run_id)
            targets.append(stack.enter_context(run))
        yield [tracker_of(each) for each in targets]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="telens export", allow_abbrev=False)
    parser.add_argument("run")
    parser.add_argument("--tensorboard")
    parser.add_argument("--wandb")
    parser.add_argument("--layer")
    parser.add_argument("--stat", action="append", default=[])
    parser.add_argument("--rank", type=int)
    return parser


def main(arguments: list[str]) -> int:
    """Exports a run and returns the exit code."""
    given = _parser().parse_args(arguments)
    try:
        run = open_run(given.run)
        numbers = [*_numbers(run, given)]
        if not numbers:
            raise UsageError(f"{given.run}: nothing to export: the run does not contain numbers")
        run_id = pathlib.Path(run.segments["path"][0]).parent.name
        with _opened(given, run_id) as trackers:
            for iteration, values in numbers:
                for tracker in trackers:
                    tracker.log(values, iteration)
    except ImportError as error:
        message = f"{error} ({sys.executable}); install the tracker's package there"
        print(f"telens: export: {message}", file=sys.stderr)
        return _BAD_INPUT
    except (Error, OSError) as error:
        print(f"telens: export: {error}", file=sys.stderr)
        return _BAD_INPUT
    count = sum(map(len, (values for _, values in numbers)))
    print(f"exported {count:,} numbers of {len(numbers):,} iterations")
    return 0
