"""Judges from the losses whether a training without a planted fault went well.

It does not use the rules of `telens diagnose`, so it can judge their false alarms: a finding about
a training that diverges by itself is not a false alarm.
"""

from __future__ import annotations

import itertools
import math
import pathlib
from collections.abc import Sequence

LEAST_GAIN = 0.05  # part of the mean loss of the first tenth
ABOVE_START = 1.1  # times the largest loss of the first tenth
ABOVE_LAST = 1.5  # times the loss of the iteration before


def did_learn(losses: Sequence[float]) -> bool:
    """Returns whether the loss ends below its start and never rose above it.

    The mean of the last tenth must be 5 % below the mean of the first tenth. No later loss may be
    10 % above the maximum of the first tenth, since the model would be worse than untrained. The
    loss must not rise by half within an iteration, which is a spike.
    """
    if len(losses) < 2 or not all(math.isfinite(loss) for loss in losses):
        return False
    tenth = max(1, len(losses) // 10)
    begin, rest, end = losses[:tenth], losses[tenth:], losses[-tenth:]
    if sum(end) > (1 - LEAST_GAIN) * sum(begin):
        return False
    steps = itertools.pairwise(losses)
    if any(before > 0 and after > ABOVE_LAST * before for before, after in steps):
        return False
    return max(rest) <= ABOVE_START * max(begin)


def losses_of(run: pathlib.Path) -> list[float]:
    """Returns the losses that `debug.step` recorded; the parts of a resumed run are joined."""
    from telens.run import Run

    scalars = Run(run).table("scalars")
    losses = scalars[scalars["name"] == "loss"].sort_values("iteration", kind="stable")
    return losses["value"].tolist()
