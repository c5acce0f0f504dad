"""The high-precision values from which a weight was quantized, kept with the parameter."""

from __future__ import annotations

from types import MethodType

import torch

__all__ = ["keep_high_precision_init_val"]


def keep_high_precision_init_val(parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Adds Transformer Engine's attribute and its two methods to a parameter.

    An optimizer creates its master copy from ``value``, which is on the CPU. Clearing releases it.
    """
    parameter._high_precision_init_val = value
    parameter.get_high_precision_init_val = MethodType(_get, parameter)
    parameter.clear_high_precision_init_val = MethodType(_clear, parameter)


def _get(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """The values before quantization, on the CPU; None once they were cleared."""
    return getattr(parameter, "_high_precision_init_val", None)


def _clear(parameter: torch.nn.Parameter) -> None:
    """Frees the values before quantization."""
    if hasattr(parameter, "_high_precision_init_val"):
        del parameter._high_precision_init_val
