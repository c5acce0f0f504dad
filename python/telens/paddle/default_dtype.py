"""Creates layers in a dtype other than Paddle's default."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import paddle

from telens._names import refusal

__all__ = ["default_dtype"]


@contextlib.contextmanager
def default_dtype(owner: str, dtype: paddle.dtype | str | None) -> Iterator[None]:
    """Parameters created inside have this dtype; None keeps Paddle's default.

    Raises UsageError, which names the owner's ``params_dtype``, if Paddle does not support
    parameters of it.
    """
    if dtype is None:
        yield
        return
    former = paddle.get_default_dtype()
    try:
        paddle.set_default_dtype(dtype)
    except TypeError:
        expected = "None or one of paddle's float16, bfloat16, float32 and float64"
        raise refusal(owner, "params_dtype", expected, dtype) from None
    try:
        yield
    finally:
        paddle.set_default_dtype(former)
