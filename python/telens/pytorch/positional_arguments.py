"""Arguments by position that Transformer Engine and its documentation have in other places."""

from __future__ import annotations

import warnings
from typing import Any

from telens import _C

__all__: list[str] = []

# How many arguments come first in every version of Transformer Engine, and in its documentation.
_AGREED_POSITIONS = {
    "Linear": 3,
    "GroupedLinear": 4,
    "LayerNormLinear": 3,
    "LayerNormMLP": 3,
    "LayerNorm": 2,
    "RMSNorm": 2,
}


def warn_of_positions(owner: str, fields: list[_C.FieldInfo], args: tuple[Any, ...]) -> None:
    """Tells of a bool behind them: there one argument stands here and another one elsewhere."""
    agreed = _AGREED_POSITIONS.get(owner, len(args))
    for field, value in zip(fields[agreed:], args[agreed:], strict=False):
        if isinstance(value, bool):
            warnings.warn(
                f"{owner}: {value} was given by position for {field.name}; Transformer Engine and "
                f"its documentation have other arguments there: give it by name, {field.name}="
                f"{value} or what was meant",
                UserWarning,
                stacklevel=3,
            )
