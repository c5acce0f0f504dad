"""Layers that are made in another dtype than Paddle's default."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import paddle

__all__ = ["default_dtype"]


@contextlib.contextmanager
def default_dtype(dtype: paddle.dtype | str | None) -> Iterator[None]:
    """Parameters that are made inside have this dtype; None: Paddle's default."""
    if dtype is None:
        yield
        return
    former = paddle.get_default_dtype()
    paddle.set_default_dtype(dtype)
    try:
        yield
    finally:
        paddle.set_default_dtype(former)
