"""``LogNvfp4TensorStats`` as a class that feature classes inherit.

The configured feature of this name is built in.
"""

from __future__ import annotations

from typing import Any

from telens.debug.features.wanted_statistics import LogsStatistics

__all__ = ["LogNvfp4TensorStats"]

_PREFIX = "nvfp4_"


class LogNvfp4TensorStats(LogsStatistics):
    """Records statistics of casts to NVFP4: underflows% and mse."""

    def get_stat_with_prefix(self, stat: str) -> str:
        """Returns the format-independent name of a statistic."""
        return stat if stat.startswith(_PREFIX) else f"{_PREFIX}{stat}"

    def _names_of(self, stats: list[Any]) -> list[str]:
        return [self.get_stat_with_prefix(each) for each in stats]
