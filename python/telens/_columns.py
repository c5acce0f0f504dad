"""The order of the columns of a run's tables."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["in_order"]

# The columns that tables begin with.
_FIRST = ["rank", "iteration", "layer", "tensor", "gemm", "statistic", "scope"]


def in_order(columns: Collection[str]) -> list[str]:
    """Orders columns: keys first, the value last."""
    middle = [name for name in columns if name not in _FIRST and name != "value"]
    return [
        *(name for name in _FIRST if name in columns),
        *middle,
        *(name for name in columns if name == "value"),
    ]
