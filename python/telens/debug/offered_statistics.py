"""The statistics of the tensor that is being passed to a feature class."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

__all__: list[str] = []


class _Offered(threading.local):
    statistics: Any = None


here = _Offered()


@contextlib.contextmanager
def offered(statistics: Any) -> Iterator[None]:
    """Makes ``LogsStatistics.inspect_tensor`` use these statistics inside the block."""
    before, here.statistics = here.statistics, statistics
    try:
        yield
    finally:
        here.statistics = before
