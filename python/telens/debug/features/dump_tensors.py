"""``DumpTensors`` as a class that feature classes inherit.

The configured feature DumpTensors is built in and writes files that ``telens`` reads.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from telens import _C
from telens.debug.features.scheduled import Scheduled
from telens.debug.registry import api_method

__all__ = ["DumpTensors"]


class DumpTensors(Scheduled):
    """Saves tensors with ``torch.save`` in the run's folder, one file per tensor.

    ``tensor_dumps/rank_0/iter_000100/<layer>_<tensor>.pt`` has a dictionary: ``high_precision``
    if ``high_precision_tensor`` is set, ``quantized`` if ``quantized_tensor`` is.
    """

    @api_method
    def inspect_tensor(
        self,
        config: dict,
        layer_name: str,
        tensor_name: str,
        iteration: int,
        tp_group: torch.distributed.ProcessGroup | None = None,
        tensor: torch.Tensor | None = None,
        rowwise_quantized_tensor: Any = None,
        columnwise_quantized_tensor: Any = None,
        quantizer: Any = None,
        tp_size: int = 1,
    ) -> None:
        """Saves the configured tensors that exist."""
        quantized = rowwise_quantized_tensor
        if quantized is None:
            quantized = columnwise_quantized_tensor
        found = {
            "high_precision": tensor if config.get("high_precision_tensor") else None,
            "quantized": quantized if config.get("quantized_tensor") else None,
        }
        found = {name: each.detach().clone() for name, each in found.items() if each is not None}
        if found:
            torch.save(found, self._path(layer_name, tensor_name, iteration))

    def _path(self, layer_name: str, tensor_name: str, iteration: int) -> Path:
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        folder = Path(_C.debug.run_path()).parent / "tensor_dumps" / f"rank_{rank}"
        folder = folder / f"iter_{iteration:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.%-]", "_", f"{layer_name}_{tensor_name}")
        return folder / f"{name}.pt"
