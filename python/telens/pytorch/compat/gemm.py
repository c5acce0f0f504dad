"""``cpp_extensions``: GEMMs and norms as functions of tensors."""

from __future__ import annotations

from typing import Any

import torch

from telens import _C
from telens._names import among, refusal
from telens.pytorch.compat.missing import missing_function
from telens.pytorch.tensor import QuantizedTensor, Quantizer

__all__ = [
    "cast_to_fp8",
    "general_gemm",
    "general_grouped_gemm",
    "get_cublas_workspace",
    "get_cublas_workspace_size_bytes",
    "get_workspace",
    "rmsnorm_fwd",
]

_PATH = "transformer_engine.pytorch.cpp_extensions"
cast_to_fp8 = missing_function(
    f"{_PATH}.cast_to_fp8", "call a quantizer, as in te.Float8Quantizer(scale, amax, dtype)(x)"
)
general_grouped_gemm = missing_function(
    f"{_PATH}.general_grouped_gemm", "use te.GroupedLinear, or general_gemm for each group"
)
rmsnorm_fwd = missing_function(f"{_PATH}.rmsnorm_fwd", "use te.RMSNorm or torch's rms_norm")


def general_gemm(
    A: torch.Tensor,
    B: torch.Tensor,
    out_dtype: torch.dtype | None = None,
    quantization_params: Quantizer | None = None,
    gelu: bool = False,
    gelu_in: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float | None = None,
    accumulate: bool = False,
    layout: str = "TN",
    out: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_split_accumulator: bool = False,
    grad: bool = False,
    ub: Any = None,
    ub_type: Any = None,
    extra_output: torch.Tensor | None = None,
    bulk_overlap: bool = False,
    workspace: torch.Tensor | None = None,
) -> tuple[torch.Tensor | Any, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Multiplies two matrices, without autograd.

    Quantized tensors are dequantized: the product of the same values is computed in FP32, rounded
    once.

    Parameters
    ----------
    A, B
        layout "TN": [N, K] and [M, K], the product is B A^T [M, N]; "NN": [K, N] and [M, K], B A;
        "NT": [K, N] and [K, M], B^T A. B may have more dimensions in front, unless transposed
    out_dtype
        dtype of the product; default: the dtype of ``out``, or else of ``A``
    quantization_params
        quantizes the product
    alpha, beta
        alpha * product + beta * out; beta needs ``accumulate``, and is 1 if None
    bias
        [N], added to the product. With ``grad`` its gradient is returned instead: the sum of B
    use_split_accumulator, workspace
        no effect
    gelu, gelu_in, ub, ub_type, extra_output, bulk_overlap
        must keep their defaults: activations and overlap with communication are not supported

    Returns
    -------
    (product, gradient of the bias or None, None, None)
    """
    owner = "general_gemm"
    among(owner, "layout", layout, ["TN", "NN", "NT"])
    for name, value in (
        ("gelu", gelu or None),
        ("gelu_in", gelu_in),
        ("ub", ub),
        ("ub_type", ub_type),
        ("extra_output", extra_output),
        ("bulk_overlap", bulk_overlap or None),
    ):
        if value is not None:
            raise refusal(owner, name, "its default: only a product is computed", value)
    if accumulate and out is None:
        raise _C.UsageError(f"{owner}: accumulate=True without out; give the tensor to add to")
    with torch.no_grad(), torch.autocast(A.device.type, enabled=False):
        a, b = _plain(A), _plain(B)
        if layout == "NT":  # wgrad: [tokens, K] and [tokens, N]
            a = a.flatten(0, -2)
        product = (b.flatten(0, -2).t() if layout[1] == "T" else b) @ (
            a.t() if layout[0] == "T" else a
        )
        product = product * alpha if alpha != 1 else product
        bias_gradient = None
        if bias is not None and grad:
            bias_gradient = b.flatten(0, -2).sum(0).to(bias.dtype)
        elif bias is not None:
            product = product + bias.float()
        if accumulate:
            product = product + out.float() * (1.0 if beta is None else beta)
        if out is not None:
            out.copy_(product)
            return out, bias_gradient, None, None
        product = product.to(out_dtype or A.dtype)
        if quantization_params is not None:
            product = quantization_params(product)
        return product, bias_gradient, None, None


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return (
        tensor.dequantize(torch.float32) if isinstance(tensor, QuantizedTensor) else tensor.float()
    )


def get_workspace() -> torch.Tensor:
    """Returns an empty tensor: callers do not have to provide a workspace for GEMMs."""
    return torch.empty(0, dtype=torch.uint8)


def get_cublas_workspace_size_bytes() -> int:
    """Returns 0: callers do not have to provide a workspace for GEMMs."""
    return 0


def get_cublas_workspace(
    device: int | None = None, ub: bool = False, grouped_gemm: bool = False
) -> torch.Tensor:
    """``get_workspace``, with the arguments of newer versions."""
    return get_workspace()


# Megatron-LM empties the cache of Transformer Engine's function.
get_cublas_workspace.cache_clear = lambda: None
