"""Products that a quantizer computes for its own tensors.

A subclass of one of ``telens.pytorch``'s quantizers that a ``CustomRecipe`` returns may have this
method, as in Transformer Engine::

   def qgemm(self, qx, qw, m_params, out_dtype, sx, sw, bias=None, out=None, accumulate=False,
             gemm_type=GEMMType.FPROP, qresult_x=None, qresult_w=None):

It replaces the GEMM of two tensors whose quantizers both have one, and is called without gradients:
the activation's method in fprop, the gradient's in dgrad and wgrad. It returns qx @ qw^T of the
values, plus bias, in ``out_dtype``. Several threads may call it concurrently.

========= ================================== ==================================
gemm_type qx, sx                             qw, sw
========= ================================== ==================================
FPROP     the activation's rows              the weight's rows
DGRAD     the gradient's rows                the weight's columns
WGRAD     the gradient's columns             the activation's columns
========= ================================== ==================================

qx, qw
    codes (uint8); columns are the rows of the transposed matrix
sx, sw
    their ``scale_inv``
m_params
    ``MMParams``
bias
    [out], only in FPROP; None without a bias
qresult_x, qresult_w
    the ``QuantizedTensor`` of each, at least in the orientation of this GEMM
out, accumulate
    never given: an accumulating caller adds the result to its buffer itself
"""

from __future__ import annotations

import dataclasses
import enum

import torch

from telens import _C

__all__ = ["GEMMType", "MMParams"]


@enum.unique
class GEMMType(enum.Enum):
    """One of a linear layer's three products."""

    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"


@dataclasses.dataclass(frozen=True)
class MMParams:
    """How to compute a product."""

    out_dtype: torch.dtype | None = None  # of the result; None: like qx's tensor
    use_split_accumulator: bool = True  # the recipe's wish


def call_qgemm(
    quantizer: _C.Quantizer,
    gemm: str,
    qx: torch.Tensor,
    qw: torch.Tensor,
    sx: torch.Tensor,
    sw: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    split_accumulator: bool,
    qresult_x: torch.Tensor,
    qresult_w: torch.Tensor,
) -> torch.Tensor:
    """Computes the product; called by the core."""
    result = quantizer.qgemm(
        qx,
        qw,
        MMParams(out_dtype, split_accumulator),
        out_dtype,
        sx,
        sw,
        bias,
        gemm_type=GEMMType(gemm),
        qresult_x=qresult_x,
        qresult_w=qresult_w,
    )
    name = f"{type(quantizer).__name__}.qgemm"
    if not isinstance(result, torch.Tensor):
        raise _C.UsageError(
            f"{name} returned {type(result).__name__} for {gemm}; expected a tensor"
        )
    shape = [qx.size(0), qw.size(0)]
    if list(result.shape) != shape or result.dtype != out_dtype or result.device != qx.device:
        raise _C.ShapeError(
            f"{name} returned {list(result.shape)} of {result.dtype} on {result.device} for "
            f"{gemm}; expected {shape} of {out_dtype} on {qx.device}"
        )
    return result
