"""Whether a training without a planted fault went well, by its losses alone.

The rules of `telens diagnose` have no part in it, so that it can judge their false alarms: a
training that diverges by itself is no healthy one, and a finding about it no false alarm.
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
    """Whether the loss ends below where it began, and never lost more than it had learned.

    The mean of the last tenth has to be 5 % below that of the first tenth, and no loss behind that
    10 % above the largest of the first tenth: there the model is worse than untrained. Nor may the
    loss rise by half within an iteration: that is a spike, whatever made it.
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
    """The losses that `debug.step` recorded, a resumed run's in one list."""
    from telens.run import Run

    scalars = Run(run).table("scalars")
    losses = scalars[scalars["name"] == "loss"].sort_values("iteration", kind="stable")
    return losses["value"].tolist()
