"""The first value that is not finite is written to disk at once, with the rows before it."""

import time

import pandas  # noqa: F401  open_run's tables need it: not to be loaded in measured time
import torch
from debug_helpers import logging_of, train

import telens
import telens.debug as debug
import telens.pytorch as te

# Other rows wait for up to a second, so that more rows are written together.
AT_ONCE = 0.7
ATTEMPTS = 5  # one must be at once: another program may hold the machine up in the others


def seconds_until(log_dir, iteration: int, begin: float) -> float:
    """The seconds from `begin` until the run file has a record of this iteration."""
    while time.monotonic() < begin + 20:
        records = telens.open_run(log_dir).records(statistic="nonfinite")
        if (records["iteration"] == iteration).any():
            return time.monotonic() - begin
        time.sleep(0.02)
    raise AssertionError(f"no record of iteration {iteration} in 20 seconds")


def seconds_of_the_first_non_finite(log_dir) -> float:
    layer, x = te.Linear(32, 32, name="fc"), torch.randn(16, 32)
    broken = x.clone()
    broken[3, 4] = float("nan")
    with debug.session(logging_of(["activation"], ["max"]), log_dir=log_dir):
        train(layer, x)
        begin = time.monotonic()
        train(layer, broken)
        seconds = seconds_until(log_dir, 1, begin)
        records = telens.open_run(log_dir).records(statistic="max")
        assert records["iteration"].tolist() == [0, 1]
    return seconds


def test_the_first_non_finite_statistic_is_on_disk_at_once(tmp_path):
    for attempt in range(ATTEMPTS):
        if seconds_of_the_first_non_finite(tmp_path / str(attempt)) < AT_ONCE:
            return
    raise AssertionError(f"none of {ATTEMPTS} was on disk within {AT_ONCE} s")
