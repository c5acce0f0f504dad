"""Clears gradients of optimizer parameters, and rejects sparse ones."""

from __future__ import annotations

import torch

from telens import _C

__all__ = ["refuse_sparse", "zero_gradients"]


def refuse_sparse(owner: str, gradient: torch.Tensor) -> None:
    """Raises UsageError for a sparse gradient."""
    if gradient.is_sparse:
        raise _C.UsageError(
            f"{owner}: a gradient is sparse; expected dense ones: make embeddings without "
            "sparse=True, or use torch.optim.SparseAdam for them"
        )


def zero_gradients(
    optimizer: torch.optim.Optimizer, set_to_none: bool | None, attribute: str = "grad"
) -> None:
    """Clears ``attribute`` on all parameters: None, or zeros if ``set_to_none`` is False.

    None as ``set_to_none`` means the optimizer's ``set_grad_none``, or True if that is None.
    """
    if set_to_none is None:
        set_to_none = optimizer.set_grad_none is not False
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = getattr(parameter, attribute, None)
            if gradient is None:
                continue
            if set_to_none:
                setattr(parameter, attribute, None)
            else:
                gradient.detach().zero_()
