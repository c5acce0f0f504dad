"""Attributes of layers with GEMMs that frameworks read, under Transformer Engine's names."""

from __future__ import annotations

from typing import Any

import torch

from telens import _C
from telens.pytorch.tensor import QuantizedTensor

__all__ = ["ReadAttributes", "note_forward"]

_NOTED = "_telens_noted_forward"


class ReadAttributes:
    """What layers with GEMMs tell of their parameters and of their newest forward."""

    # Of the newest forward: whether it was inside an enabled or a calibrating autocast, and the
    # dtype that it computed in.
    fp8: bool = False
    fp8_calibration: bool = False
    activation_dtype: torch.dtype | None = None

    @property
    def fp8_initialized(self) -> bool:
        """Whether the layer has an FP8 state: after its first forward in FP8, or a checkpoint."""
        return bool(self.fp8_meta["fp8_checkpoint"])

    @property
    def primary_weights_in_fp8(self) -> bool:
        """Whether the layer's weights are stored in low precision only."""
        return any(isinstance(each, QuantizedTensor) for each in self._parameters.values())

    @property
    def weight_names(self) -> list[str]:
        """Names of the weights of GEMMs: ``["weight"]``, or those of ``parameters_split``."""
        is_weight = self._telens_adapter.is_gemm_weight
        return [name for name in self._parameters if is_weight(name)]

    @property
    def bias_names(self) -> list[str]:
        """The name of each weight's bias, whether it has one or not."""
        return [_replaced(name) for name in self.weight_names]

    @property
    def apply_bias(self) -> bool:
        """Whether the forward adds the bias: there is one, and it is not returned instead."""
        options = self._telens_adapter.options()
        return bool(options.get("bias")) and not options.get("return_bias")


def _replaced(name: str) -> str:
    head, _, tail = name.rpartition("weight")
    return f"{head}bias{tail}"


def note_forward(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a forward: sets the attributes that tell of it, also of the layers inside."""
    first = args[0] if args else next(iter(kwargs.values()), None)
    if not isinstance(first, torch.Tensor):
        return
    kind = first.device.type
    autocast = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if autocast else first.dtype
    noted = (_C.is_fp8_enabled(), _C.is_fp8_calibrating(), dtype)
    if module.__dict__.get(_NOTED) == noted:
        return
    module.__dict__[_NOTED] = noted
    for each in module.modules():
        if isinstance(each, ReadAttributes):
            each.fp8, each.fp8_calibration, each.activation_dtype = noted
