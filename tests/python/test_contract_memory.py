"""A session keeps nothing of the iterations that are over."""

import pathlib
import resource

import torch
from debug_helpers import Scalars, logging_of

import telens.debug as debug
import telens.pytorch as te

WARM_UP, STEPS = 1000, 8000


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
        before = 0
        for step in range(WARM_UP + STEPS):
            if step == WARM_UP:
                before = resident_bytes()
            layer(x).sum().backward()
            debug.step()
        grown = resident_bytes() - before
    assert grown / STEPS < 200, f"{grown} bytes in {STEPS} steps"
