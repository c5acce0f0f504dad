"""Converts checkpoints between a GroupedLinear with one weight parameter and one with many."""

from __future__ import annotations

from typing import Any

import torch

from telens.pytorch.tensor import QuantizedTensor

__all__: list[str] = []


def arrange(state_dict: dict[str, Any], prefix: str, options: dict[str, Any]) -> None:
    """Converts the entries of ``weight`` and ``bias`` to the form that the module's options
    require.

    The joined ``weight`` is ``weight0``, ``weight1``, ... concatenated by rows; likewise ``bias``.
    """
    for kind in ("weight", "bias"):
        whole = prefix + kind
        parts = [f"{whole}{i}" for i in range(options["num_gemms"])]
        if options[f"single_grouped_{kind}"]:
            if whole not in state_dict and all(part in state_dict for part in parts):
                state_dict[whole] = torch.stack([_plain(state_dict.pop(part)) for part in parts])
        elif whole in state_dict and not any(part in state_dict for part in parts):
            for part, value in zip(parts, _plain(state_dict.pop(whole)).unbind(0), strict=True):
                state_dict[part] = value


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
