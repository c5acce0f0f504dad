"""A session keeps nothing of past iterations."""

import pathlib
import resource
from itertools import pairwise

import torch
from debug_helpers import Scalars, logging_of

import telens.debug as debug
import telens.pytorch as te

WARM_UP, STEPS, WINDOWS = 1000, 2000, 3


def resident_bytes() -> int:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class Nothing(Scalars):
    def log_scalar(self, name, value, iteration, **kwargs):
        """Keeps nothing itself."""


def test_a_long_session_grows_by_nothing(tmp_path):
    layer, x = te.Linear(16, 16, name="fc"), torch.randn(16, 16)
    everything = ["activation", "weight", "gradient", "output", "wgrad"]
    config = logging_of(everything, ["min", "max", "mean", "std"])
    with debug.session(config, statistics_logger=Nothing(), log_dir=tmp_path):
        resident = []
        for step in range(WARM_UP + WINDOWS * STEPS):
            if step >= WARM_UP and (step - WARM_UP) % STEPS == 0:
                resident.append(resident_bytes())
            layer(x).sum().backward()
            debug.step()
        resident.append(resident_bytes())
    # If memory is kept, it grows in every window; an allocator that gets more from the system does
    # so in one.
    grown = min(after - before for before, after in pairwise(resident))
    assert grown / STEPS < 200, f"{resident} bytes after {STEPS} steps each"
