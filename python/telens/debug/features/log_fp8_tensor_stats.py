"""``LogFp8TensorStats`` as a class that feature classes inherit.

The configured feature of this name is built in.
"""

from __future__ import annotations

from telens.debug.features.wanted_statistics import LogsStatistics

__all__ = ["LogFp8TensorStats"]


class LogFp8TensorStats(LogsStatistics):
    """Records statistics of casts to FP8: underflows%, scale_inv_min, mse, mxfp8_mse, ..."""
