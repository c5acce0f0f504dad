"""qkv_layer and kv_layer: query, key and value in one tensor, as one GEMM leaves them."""

from __future__ import annotations

from typing import Any

import torch

from telens import _C
from telens._names import refusal

__all__ = ["REPLACEABLE", "is_packed", "unpacked"]

# The arguments that a packed tensor takes the place of.
REPLACEABLE = ("query_layer", "key_layer", "value_layer")
_PARTS = {"qkv_layer": 3, "kv_layer": 2}
_INTERLEAVE = "qkv_interleave_dim"


def is_packed(arguments: dict[str, Any]) -> bool:
    """Whether a call of DotProductAttention gives one of the packed tensors."""
    return any(arguments.get(name) is not None for name in _PARTS)


def unpacked(
    owner: str, args: tuple[Any, ...], arguments: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with query_layer, key_layer and value_layer, which are views.

    ``qkv_layer`` is [..., 3, heads, size] and takes the place of the three, ``kv_layer``
    [..., 2, groups, size] that of key and value; with ``qkv_interleave_dim=-2`` they are
    [..., heads, 3, size] and [..., groups, 2, size]. The dimensions in front are those of
    ``qkv_format``.
    """
    arguments = dict(arguments)
    given = [name for name in _PARTS if arguments.get(name) is not None]
    if len(given) > 1:
        raise _C.UsageError(f"{owner}: qkv_layer and kv_layer are both given; give one of them")
    (name,) = given
    parts = _PARTS[name]
    tensor = arguments[name]
    for each in _PARTS:
        arguments.pop(each, None)
    dim = arguments.pop(_INTERLEAVE, -3)
    if type(dim) is not int or dim not in (-3, -2):
        raise refusal(owner, _INTERLEAVE, "-3 or -2", dim)
    if not isinstance(tensor, torch.Tensor):
        raise refusal(owner, name, f"a tensor of {parts} parts", tensor)
    if tensor.dim() < 4 or tensor.size(dim) != parts:
        shape = f"[..., {parts}, heads, size]" if dim == -3 else f"[..., heads, {parts}, size]"
        raise _C.ShapeError(
            f"{owner}: {name} is {list(tensor.shape)}; with {_INTERLEAVE}={dim} it is {shape}"
        )
    by_position = list(args)
    for number, part in enumerate(tensor.unbind(dim), start=len(REPLACEABLE) - parts):
        replaced = REPLACEABLE[number]
        given_too = by_position[number] if number < len(args) else None
        if given_too is not None or arguments.get(replaced) is not None:
            raise _C.UsageError(
                f"{owner}: {name} holds {replaced}, which is given too; leave it out"
            )
        if number < len(args):
            by_position[number] = part
            arguments.pop(replaced, None)
        else:
            arguments[replaced] = part
    return tuple(by_position), arguments
