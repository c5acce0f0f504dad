"""Seeds the C++ core from Paddle's random state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import paddle
import torch

__all__ = ["torch_draws_from_paddle"]

_SEEDS = 2**31 - 1  # Paddle draws an int32


@contextlib.contextmanager
def torch_draws_from_paddle(active: bool) -> Iterator[None]:
    """Seeds LibTorch's generator inside the block by a draw from Paddle's; restores it afterwards.

    So ``paddle.seed``, fleet's tracker of random states and recomputation control dropout as in
    Paddle's own layers.
    """
    if not active:
        yield
        return
    with paddle.no_grad():
        seed = int(paddle.randint(0, _SEEDS, [1]).item())
    used = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=used):
        torch.manual_seed(seed)
        yield
