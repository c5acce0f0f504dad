"""Arguments of quantizers in the form that scripts for Transformer Engine pass."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import torch

from telens import _C
from telens._names import nearest, refusal
from telens.common.field_types import is_boolean, is_integer, is_number

__all__: list[str] = []

_FP8 = (_C.DType.kFloat8E4M3, _C.DType.kFloat8E5M2)
# The compiled ones.
_QUANTIZERS = [each for each in _C.Quantizer.__subclasses__() if each.__module__ == _C.__name__]
(_IN_FP4,) = (each.__name__ for each in _QUANTIZERS if "fp4_dtype" in each.__init__.__doc__)


def take_what_transformer_engine_takes() -> None:
    """Makes the quantizers' constructors check their arguments, and convert scale and amax.

    It wraps the constructors of the compiled classes, since the core does not return subclasses.
    """
    for quantizer in _QUANTIZERS:
        quantizer.__init__ = _checking(quantizer)


def _checking(quantizer: type) -> Any:
    build = quantizer.__init__
    positional, by_name = _names_of(build.__doc__)

    @functools.wraps(build)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = _given(quantizer.__name__, positional, [*positional, *by_name], args, kwargs)
        for name, value in given.items():
            fits, expected = _expected_of(name)
            if not fits(value):
                raise refusal(quantizer.__name__, name, expected, value)
        fp8_dtype = given.get("fp8_dtype", _FP8[0])
        if fp8_dtype not in _FP8:
            raise _C.UsageError(
                f"{quantizer.__name__}: fp8_dtype must be DType.kFloat8E4M3 or DType.kFloat8E5M2, "
                f"not DType.{fp8_dtype.name}; {_IN_FP4} makes E2M1"
            )
        for name in {"scale", "amax"} & given.keys():
            given[name] = _as_fp32(given[name])
        try:
            build(self, **given)
        except TypeError as error:
            missing = [name for name in positional if name not in given]
            if not missing or "incompatible constructor arguments" not in str(error):
                raise  # about a group, for example
            raise _C.UsageError(
                f"{quantizer.__name__}: it needs {', '.join(positional)}; there is no "
                f"{' and no '.join(missing)}"
            ) from None

    return __init__


def _names_of(documentation: str) -> tuple[list[str], list[str]]:
    """Returns the positional and the keyword-only arguments that pybind11 lists in a docstring.

    __init__(self: ..., scale: torch.Tensor, *, rowwise: bool = True) -> None
    """
    signature = documentation.partition(" -> None")[0]
    by_position, _, by_name = signature.partition("*, ")
    names = re.findall(r"[(,] ?(\w+): ", by_position)[1:]  # without self
    return names, re.findall(r"(?:^|, )(\w+): ", by_name)


def _given(
    quantizer: str, positional: list[str], names: list[str], args: tuple, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Returns all arguments by name."""
    if len(args) > len(positional):
        raise _C.UsageError(
            f"{quantizer}: accepts {len(positional)} arguments by position "
            f"({', '.join(positional)}), got {len(args)}; pass the others by name"
        )
    given = dict(zip(positional, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise _C.UsageError(
                f"{quantizer}: unknown argument '{name}'{nearest(name, names)}; it takes "
                f"{', '.join(names)}"
            )
        if name in given:
            raise _C.UsageError(f"{quantizer}: {name} was given twice")
        given[name] = value
    return given


def _expected_of(name: str) -> tuple[Callable[[Any], bool], str]:
    if name in _EXPECTED:
        return _EXPECTED[name]
    if name.endswith("wise") or name.startswith(("with_", "force_", "stochastic_")):
        return is_boolean, "a boolean"
    return lambda value: True, "anything"  # device, groups: checked when they are used


_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "scale": (lambda value: _has_one_element(value), "a one-element tensor"),
    "amax": (lambda value: _has_one_element(value), "a one-element tensor"),
    "fp8_dtype": (lambda value: isinstance(value, _C.DType), "a DType"),
    "fp4_dtype": (lambda value: isinstance(value, _C.DType), "a DType"),
    "scale_rounding": (lambda value: isinstance(value, _C.ScaleRounding), "a ScaleRounding"),
    "block_scaling_dim": (lambda value: is_integer(value) and value in (1, 2), "1 or 2"),
    "amax_epsilon": (
        lambda value: is_number(value) and math.isfinite(value) and value >= 0,
        "a number from 0 on",
    ),
}


def _has_one_element(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1


def _as_fp32(value: torch.Tensor) -> torch.Tensor:
    """Converts a tensor of another dtype to FP32; the amax is then written to the copy."""
    return value.to(torch.float32) if isinstance(value, torch.Tensor) else value
