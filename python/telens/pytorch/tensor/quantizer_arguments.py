"""What quantizers are built from, as scripts for Transformer Engine hand it over."""

from __future__ import annotations

import functools
from typing import Any

import torch

from telens import _C

__all__: list[str] = []

_FP8 = (_C.DType.kFloat8E4M3, _C.DType.kFloat8E5M2)
_FP8_QUANTIZERS = (
    _C.Float8Quantizer,
    _C.Float8CurrentScalingQuantizer,
    _C.MXFP8Quantizer,
    _C.Float8BlockQuantizer,
)


def take_what_transformer_engine_takes() -> None:
    """Has the quantizers' constructors check the format and convert scale and amax.

    Around the constructors of the compiled classes, since subclasses would not be what the core
    hands out.
    """
    for quantizer in _FP8_QUANTIZERS:
        quantizer.__init__ = _checking(quantizer)


def _checking(quantizer: type) -> Any:
    build = quantizer.__init__

    @functools.wraps(build)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if quantizer is _C.Float8Quantizer:
            # scale, amax, fp8_dtype
            names = ("scale", "amax")
            args = tuple(_as_fp32(each) if i < len(names) else each for i, each in enumerate(args))
            kwargs = {k: _as_fp32(v) if k in names else v for k, v in kwargs.items()}
            given = args[len(names) :]
        else:
            given = args
        fp8_dtype = given[0] if given else kwargs.get("fp8_dtype", _FP8[0])
        if isinstance(fp8_dtype, _C.DType) and fp8_dtype not in _FP8:
            raise _C.UsageError(
                f"{quantizer.__name__}: fp8_dtype must be DType.kFloat8E4M3 or DType.kFloat8E5M2, "
                f"not DType.{fp8_dtype.name}; NVFP4Quantizer makes E2M1"
            )
        build(self, *args, **kwargs)

    return __init__


def _as_fp32(value: Any) -> Any:
    """A tensor of another dtype as a FP32 copy; the amax that is collected is then the copy."""
    return value.to(torch.float32) if isinstance(value, torch.Tensor) else value
