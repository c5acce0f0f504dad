"""How many arguments may be given by position: as many as Transformer Engine has in one order."""

from __future__ import annotations

import sys
from typing import Any

from telens import _C

__all__ = ["check_constructor_positions", "constructor_positions", "forward_positions"]

# Of Linear, torch.nn.Linear and Transformer Engine's documentation have the bias third.
_CONSTRUCTORS = {
    "Linear": 3,
    "GroupedLinear": 3,
    "LayerNormLinear": 3,
    "LayerNormMLP": 3,
    "LayerNorm": 2,
    "RMSNorm": 2,
    "DotProductAttention": 6,
    "MultiheadAttention": 9,
    "TransformerLayer": 12,
}
_FORWARDS = {
    "Linear": 4,
    "GroupedLinear": 5,
    "LayerNormLinear": 4,
    "LayerNormMLP": 2,
    "LayerNorm": 1,
    "RMSNorm": 1,
    "DotProductAttention": 5,
    "MultiheadAttention": 4,
    "TransformerLayer": 3,
}
# Classes whose next argument is a bool with two meanings, by how many come before it.
_BIAS_OR_SEQUENCE_PARALLEL = ("GroupedLinear", "LayerNormLinear", "LayerNormMLP")


def constructor_positions(module: str) -> int:
    """How many arguments of a constructor may be given by position; the others are keyword-only."""
    return _CONSTRUCTORS.get(module, sys.maxsize)


def forward_positions(module: str) -> int:
    """The same for ``forward``."""
    return _FORWARDS.get(module, sys.maxsize)


def check_constructor_positions(
    module: str, fields: list[_C.FieldInfo], args: tuple[Any, ...]
) -> None:
    """Raises TypeError for an argument by position that Transformer Engine has in another place."""
    positions = constructor_positions(module)
    if len(args) <= positions:
        return
    message = (
        f"{module}: takes at most {positions} arguments by position "
        f"({', '.join(field.name for field in fields[:positions])}), got {len(args)}"
    )
    value = args[positions]
    if isinstance(value, bool) and module in _BIAS_OR_SEQUENCE_PARALLEL:
        raise TypeError(
            f"{message}; the next one, {value}, is bias in Transformer Engine's documentation and "
            f"sequence_parallel in its code: give bias={value} or sequence_parallel={value} by name"
        )
    if positions < len(fields):
        message += f"; give the others by name: {fields[positions].name}=..."
    raise TypeError(message)
