"""``LogTensorStats`` as a class that feature classes inherit.

The configured feature of this name is built in.
"""

from __future__ import annotations

from telens.debug.features.wanted_statistics import LogsStatistics

__all__ = ["LogTensorStats"]


class LogTensorStats(LogsStatistics):
    """Records statistics of tensors before quantization: min, max, mean, std, cur_amax, ..."""
