"""Calls a class that defines a statistic for the statistics engine."""

from __future__ import annotations

from typing import Any

import torch


class StatisticCaller:
    """Converts the results of the class to FP64 tensors of ``size`` values."""

    def __init__(self, statistic: Any) -> None:
        self._statistic = statistic
        self._size = statistic.size

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor's sums, on the device of the class's result."""
        return self._sums("add", self._statistic.add(tensor))

    def merge(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Returns the merged sums on the host."""
        return self._sums("merge", self._statistic.merge(a, b)).cpu()

    def finish(self, sums: torch.Tensor) -> float:
        """Returns the value of the sums."""
        return float(self._statistic.finish(sums))

    def _sums(self, method: str, returned: Any) -> torch.Tensor:
        sums = torch.as_tensor(returned, dtype=torch.float64)
        if sums.numel() != self._size:
            raise ValueError(
                f"{method} returned {sums.numel()} values, and size is {self._size}; return as "
                "many as that"
            )
        return sums.flatten()
