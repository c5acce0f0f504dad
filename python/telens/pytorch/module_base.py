"""The base of layers with GEMMs, under the name that scripts for Transformer Engine import."""

import torch

from telens import _C
from telens.pytorch.checkpoints.extra_state import WithExtraState as TransformerEngineBaseModule
from telens.pytorch.compat.gemm import get_workspace

__all__ = ["TransformerEngineBaseModule", "get_dummy_wgrad", "get_workspace"]

_dummies: dict[tuple, torch.Tensor] = {}


def get_dummy_wgrad(shape: list[int], dtype: torch.dtype, zero: bool = False) -> torch.Tensor:
    """Returns a tensor for autograd in place of a gradient that went to ``main_grad``.

    One tensor for each shape and dtype, with arbitrary values unless ``zero``.
    """
    key = (*shape, dtype)
    if key not in _dummies:
        device = _C.default_device(torch.cuda.is_available())
        _dummies[key] = torch.empty(shape, dtype=dtype, device=device)
    if zero:
        _dummies[key].zero_()
    return _dummies[key].detach()
