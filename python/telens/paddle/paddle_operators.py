"""The Paddle operators that ``backend='paddle'`` runs."""

from __future__ import annotations

import paddle
import paddle.nn.functional as F

from telens import _C
from telens._names import among

__all__ = ["ACTIVATIONS", "GATED_ACTIVATIONS", "activate", "normalize"]

# Transformer Engine's names for Paddle: (the core's name, the function, whether it gates).
_ACTIVATIONS = {
    "gelu": ("gelu", lambda x: F.gelu(x, approximate=True), False),
    "geglu": ("geglu", lambda x: F.gelu(x, approximate=True), True),
    "relu": ("relu", F.relu, False),
    "reglu": ("reglu", F.relu, True),
    "squared_relu": ("srelu", lambda x: F.relu(x).square(), False),
    "swiglu": ("swiglu", F.silu, True),
}
ACTIVATIONS = {name: row[0] for name, row in _ACTIVATIONS.items()}
GATED_ACTIVATIONS = frozenset(name for name, row in _ACTIVATIONS.items() if row[2])


def check_activation(owner: str, activation: str) -> str:
    """Returns the activation if it is one of ``ACTIVATIONS``. Raises UsageError otherwise."""
    return among(owner, "activation", activation, list(_ACTIVATIONS))


def activate(x: paddle.Tensor, activation: str) -> paddle.Tensor:
    """Applies the activation; if it is gated, the first half of the features gates the second."""
    _, function, gates = _ACTIVATIONS[activation]
    if not gates:
        return function(x)
    first, second = x.chunk(2, axis=-1)
    return function(first) * second


def normalize(
    owner: str,
    x: paddle.Tensor,
    weight: paddle.Tensor,
    bias: paddle.Tensor | None,
    *,
    eps: float,
    normalization: str,
    zero_centered_gamma: bool,
) -> paddle.Tensor:
    """Applies LayerNorm or RMSNorm over the last dimension."""
    if zero_centered_gamma:
        raise _C.UsageError(
            f"{owner}: backend 'paddle' does not support zero_centered_gamma; use backend "
            "'transformer_engine'"
        )
    if normalization == "LayerNorm":
        return F.layer_norm(x, x.shape[-1], weight, bias, eps)
    wide = x.astype("float32")
    scaled = wide * paddle.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return scaled.astype(x.dtype) * weight
