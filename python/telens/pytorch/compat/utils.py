"""``transformer_engine.pytorch.utils``: small functions that layers outside of this package use."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from telens import _C
from telens._names import refusal
from telens.pytorch.layers.initialization import DEFAULT_WEIGHT_STD

__all__ = [
    "SplitAlongDim",
    "attention_mask_func",
    "cast_if_needed",
    "ceil_div",
    "deinterleave_glu_tensor",
    "divide",
    "ensure_divisibility",
    "get_cudnn_version",
    "get_default_init_method",
    "get_device_compute_capability",
    "get_sm_count",
    "init_method_constant",
    "init_method_normal",
    "interleave_glu_tensor",
    "make_weak_ref",
    "nvtx_range_pop",
    "nvtx_range_push",
    "requires_grad",
    "round_up_to_nearest_multiple",
    "scaled_init_method_normal",
]

# The value that Transformer Engine's softmax gives masked scores.
_MASKED_SCORE = -10000.0


def get_device_compute_capability() -> tuple[int, int]:
    """Returns the compute capability of the current GPU; (0, 0) without a GPU."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)


def get_cudnn_version() -> tuple[int, int, int]:
    """Returns the version of cuDNN that torch loads; (0, 0, 0) without one."""
    version = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    if version is None:
        return 0, 0, 0
    # cuDNN 9 encodes major * 10000 + minor * 100 + patch, older versions major * 1000.
    unit = 10000 if version >= 90000 else 1000
    return version // unit, version % unit // 100, version % 100


def get_sm_count() -> int:
    """Returns the multiprocessors of the current GPU; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


def init_method_normal(sigma: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns an initialization by N(0, sigma^2)."""
    return lambda tensor: torch.nn.init.normal_(tensor, mean=0.0, std=sigma)


def scaled_init_method_normal(
    sigma: float, num_layers: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns an initialization by N(0, sigma^2 / (2 num_layers)), for residual outputs."""
    return init_method_normal(sigma / math.sqrt(2.0 * num_layers))


def init_method_constant(val: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns an initialization by one value."""
    return lambda tensor: torch.nn.init.constant_(tensor, val)


def get_default_init_method() -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns the initialization of weights that no ``init_method`` sets."""
    return init_method_normal(DEFAULT_WEIGHT_STD)


def attention_mask_func(
    attention_scores: torch.Tensor, attention_mask: torch.Tensor
) -> torch.Tensor:
    """Sets masked scores to -10000 in place. Masked means True."""
    return attention_scores.masked_fill_(attention_mask, _MASKED_SCORE)


def ensure_divisibility(numerator: int, denominator: int) -> None:
    """Raises UsageError unless ``numerator`` is a multiple of ``denominator``."""
    if numerator % denominator != 0:
        raise _C.UsageError(f"{numerator} is not a multiple of {denominator}; give one that is")


def divide(numerator: int, denominator: int) -> int:
    """Returns the quotient; raises UsageError for a remainder."""
    ensure_divisibility(numerator, denominator)
    return numerator // denominator


def ceil_div(numerator: int, denominator: int) -> int:
    """Returns the quotient, rounded up."""
    return -(-numerator // denominator)


def round_up_to_nearest_multiple(value: int, multiple: int) -> int:
    """Returns the least multiple that is not below the value."""
    return ceil_div(value, multiple) * multiple


def cast_if_needed(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Returns the tensor in a dtype, itself if it has it; None for None."""
    return tensor if tensor is None or tensor.dtype == dtype else tensor.to(dtype)


def requires_grad(*tensors: torch.Tensor | None) -> bool:
    """Returns whether one of the tensors requires a gradient."""
    return any(each is not None and each.requires_grad for each in tensors)


def interleave_glu_tensor(tensor: torch.Tensor, interleave_size: int) -> torch.Tensor:
    """Reorders rows [gate; linear] to alternating blocks of ``interleave_size`` rows."""
    return _reordered("interleave_glu_tensor", tensor, interleave_size, (2, -1))


def deinterleave_glu_tensor(tensor: torch.Tensor, interleave_size: int) -> torch.Tensor:
    """Restores the row order [gate; linear] of the input of ``interleave_glu_tensor``."""
    return _reordered("deinterleave_glu_tensor", tensor, interleave_size, (-1, 2))


def _reordered(
    owner: str, tensor: torch.Tensor, interleave_size: int, halves_and_blocks: tuple[int, int]
) -> torch.Tensor:
    if interleave_size <= 0 or tensor.size(0) % (2 * interleave_size) != 0:
        raise _C.ShapeError(
            f"{owner}: {tensor.size(0)} rows with interleave_size={interleave_size}; expected a "
            "multiple of 2 * interleave_size rows"
        )
    blocks = tensor.unflatten(0, (*halves_and_blocks, interleave_size))
    return blocks.transpose(0, 1).flatten(0, 2).contiguous()


class SplitAlongDim(torch.autograd.Function):
    """``torch.split`` as a function with ``apply``, whose backward concatenates once."""

    @staticmethod
    def forward(
        ctx: Any,
        mixed_x_layer: torch.Tensor,
        split_dim: int,
        split_size_or_sections: int | Sequence[int],
        squeeze: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """Returns the parts, with ``squeeze`` without the dimension, which then has size 1."""
        ctx.dim, ctx.squeeze = split_dim, squeeze
        parts = torch.split(mixed_x_layer, split_size_or_sections, dim=split_dim)
        if squeeze:
            parts = tuple(each.squeeze(split_dim) for each in parts)
        # Autograd rejects in-place changes of views that a custom function returns, so detach.
        return tuple(each.detach() for each in parts)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradient of the whole tensor."""
        parts = [each.unsqueeze(ctx.dim) if ctx.squeeze else each for each in grad_outputs]
        return torch.cat(parts, dim=ctx.dim), None, None, None


def make_weak_ref(x: Any) -> Any:
    """Returns the value with its tensors, which stay alive: on a CPU nothing has to be freed early.

    Raises UsageError for tensors on a GPU, whose memory a weak reference would leave to its owner.
    """
    if isinstance(x, torch.Tensor):
        if x.is_cuda:
            raise refusal("make_weak_ref", "x", "tensors on a CPU: weak ones are missing", x.device)
        return x
    if isinstance(x, tuple | list):
        return type(x)(map(make_weak_ref, x))
    if isinstance(x, dict):
        return {name: make_weak_ref(value) for name, value in x.items()}
    if x is None or isinstance(x, int | float):
        return x
    raise refusal("make_weak_ref", "x", "tensors, numbers, None, or containers of these", x)


def nvtx_range_push(msg: str) -> None:
    """Begins a range of NVTX on a GPU; nothing on a CPU."""
    if torch.cuda.is_available():
        torch.cuda.nvtx.range_push(msg)


def nvtx_range_pop(msg: str | None = None) -> None:
    """Ends the innermost range of NVTX on a GPU; nothing on a CPU."""
    if torch.cuda.is_available():
        torch.cuda.nvtx.range_pop()
