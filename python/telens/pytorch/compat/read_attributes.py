"""Attributes of layers with GEMMs that frameworks read, under Transformer Engine's names."""

from __future__ import annotations

import torch

from telens import _C
from telens.pytorch.tensor import QuantizedTensor

__all__ = ["ReadAttributes"]


class ReadAttributes:
    """Attributes that describe a layer's parameters and the region in which it runs.

    They are computed when they are read, so that a forward does not pay for them. Scripts for
    Transformer Engine assign some of them, which its next forward overwrites. Here an assignment is
    accepted and ignored.
    """

    @property
    def fp8(self) -> bool:
        """Whether a forward would run in FP8 now, that is, inside of an enabled autocast."""
        return _C.is_fp8_enabled()

    @fp8.setter
    def fp8(self, value: bool) -> None:
        pass

    @property
    def fp8_calibration(self) -> bool:
        """Whether a forward would calibrate now, that is, inside of a calibrating autocast."""
        return _C.is_fp8_calibrating()

    @fp8_calibration.setter
    def fp8_calibration(self, value: bool) -> None:
        pass

    @property
    def activation_dtype(self) -> torch.dtype:
        """The dtype that a forward computes in now: torch's autocast, else the parameters'.

        A layer without parameters has torch's default dtype.
        """
        first = next(iter(self.parameters()), None)
        device = torch.get_default_device() if first is None else first.device
        if torch.is_autocast_enabled(device.type):
            return torch.get_autocast_dtype(device.type)
        return torch.get_default_dtype() if first is None else first.dtype

    @activation_dtype.setter
    def activation_dtype(self, value: torch.dtype) -> None:
        pass

    @property
    def fp8_initialized(self) -> bool:
        """Whether the layer has an FP8 state: after its first forward in FP8, or a checkpoint."""
        return bool(self.fp8_meta["fp8_checkpoint"])

    @fp8_initialized.setter
    def fp8_initialized(self, value: bool) -> None:
        pass

    @property
    def primary_weights_in_fp8(self) -> bool:
        """Whether the layer's weights are stored in low precision only."""
        return any(isinstance(each, QuantizedTensor) for each in self._parameters.values())

    @primary_weights_in_fp8.setter
    def primary_weights_in_fp8(self, value: bool) -> None:
        pass

    @property
    def weight_names(self) -> list[str]:
        """Names of GEMM weights: ``["weight"]``, or the names that ``parameters_split`` gives."""
        is_weight = self._telens_adapter.is_gemm_weight
        return [name for name in self._parameters if is_weight(name)]

    @property
    def bias_names(self) -> list[str]:
        """The name of each weight's bias, also for weights without a bias."""
        return [_replaced(name) for name in self.weight_names]

    @property
    def apply_bias(self) -> bool:
        """Whether the forward adds the bias: there is one, and it is not returned instead."""
        options = self._telens_adapter.options()
        return bool(options.get("bias")) and not options.get("return_bias")


def _replaced(name: str) -> str:
    head, _, tail = name.rpartition("weight")
    return f"{head}bias{tail}"
