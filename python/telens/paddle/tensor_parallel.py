"""Tensor and sequence parallelism of a linear layer over a ``paddle.distributed`` group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import paddle
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import get_rng_state_tracker

from telens import _C
from telens._names import among
from telens.paddle import collectives
from telens.paddle.arguments import check_group
from telens.paddle.collectives import to_torch_group

__all__ = ["LinearParallel", "divide", "random_state", "settle_group"]

# Fleet's name of the random state that initializes weights of parallel layers.
MODEL_PARALLEL_RNG = "model_parallel_rng"


def settle_group(owner: str, tp_group: Any, parallel: bool) -> tuple[Any, int]:
    """Returns the group and its size: by default fleet's model-parallel group; (None, 1) without
    one.

    Raises TypeError for a group without ``nranks`` and ``rank``, the attributes of
    ``paddle.distributed`` groups.
    """
    check_group(owner, "tp_group", tp_group)
    if not parallel:
        return None, 1
    if tp_group is None and paddle.distributed.is_initialized():
        hybrid = fleet.get_hybrid_communicate_group()
        tp_group = None if hybrid is None else hybrid.get_model_parallel_group()
    return (None, 1) if tp_group is None else (tp_group, tp_group.nranks)


def divide(owner: str, name: str, size: int, parts: int) -> int:
    """Returns size / parts. Raises UsageError if there is a remainder."""
    if size % parts != 0:
        raise _C.UsageError(
            f"{owner}: {name} is {size}, which {parts} tensor-parallel ranks cannot divide; "
            "give it a multiple"
        )
    return size // parts


@contextlib.contextmanager
def random_state(parallel: bool, name: str | None = None) -> Iterator[None]:
    """Inside, Paddle draws from the named state of fleet's tracker if ranks are parallel.

    Raises UsageError if the tracker lacks that state.
    """
    if not parallel:
        yield
        return
    tracker = get_rng_state_tracker()
    name = MODEL_PARALLEL_RNG if name is None else name
    if name not in tracker.states_:
        call = (
            "paddle.distributed.fleet.meta_parallel.model_parallel_random_seed(seed)"
            if name == MODEL_PARALLEL_RNG
            else f"get_rng_state_tracker().add({name!r}, seed)"
        )
        raise _C.UsageError(
            f"fleet's tracker lacks the random state {name!r}, from which tensor-parallel layers "
            f"draw; call {call} on every rank before the first layer is created"
        )
    with tracker.rng_state(name):
        yield


@dataclass(frozen=True)
class LinearParallel:
    """The partition of a linear layer and its collectives."""

    owner: str
    mode: str | None
    group: Any
    size: int
    sequence: bool
    gather_output: bool

    @staticmethod
    def of(
        owner: str, mode: str | None, sequence: bool, tp_group: Any, gather_output: bool = False
    ) -> LinearParallel:
        """Creates it from a layer's arguments. Raises UsageError for an unknown
        ``parallel_mode``."""
        if mode is not None:
            # Transformer Engine's documentation uses capitals, its code lower case.
            mode = among(
                owner, "parallel_mode", str(mode).lower(), ["column", "row"], "None or one"
            )
        group, size = settle_group(owner, tp_group, mode is not None)
        return LinearParallel(owner, mode, group, size, sequence and size > 1, gather_output)

    @property
    def is_parallel(self) -> bool:
        return self.size > 1

    @property
    def adds_bias_later(self) -> bool:
        """Returns whether the bias is added to the summed output of the ranks."""
        return self.mode == "row" and self.is_parallel

    def own_part(self, in_features: int, out_features: int) -> tuple[int, int]:
        """Returns this rank's part of the weight."""
        if self.mode == "column":
            out_features = divide(self.owner, "out_features", out_features, self.size)
        if self.mode == "row":
            in_features = divide(self.owner, "in_features", in_features, self.size)
        return in_features, out_features

    def core_options(self) -> dict[str, Any]:
        """Returns the group for the core module, which passes it to debug features."""
        return {"tp_group": to_torch_group(self.group)} if self.is_parallel else {}

    def own_random_state(self) -> contextlib.AbstractContextManager[None]:
        """The random state that initializes this rank's part of the weight."""
        return random_state(self.is_parallel)

    def mark_weight(self, weight: paddle.Tensor, *, transposed: bool) -> None:
        """Marks for fleet the dimension along which the weight is divided."""
        if self.is_parallel and self.mode is not None:
            weight.is_distributed = True
            weight.split_axis = int((self.mode == "row") != transposed)

    def mark_bias(self, bias: paddle.Tensor | None) -> None:
        """Marks for fleet how the bias is divided, or that its gradient is partial."""
        if bias is None or not self.is_parallel:
            return
        if self.mode == "column":
            bias.is_distributed = True
            bias.split_axis = 0
        elif self.sequence:
            bias.sequence_parallel = True

    def before(self, inp: paddle.Tensor) -> paddle.Tensor:
        """Runs the collective before the GEMM."""
        if self.mode != "column" or not self.is_parallel:
            return inp
        if self.sequence:
            return collectives.gather_sequence(inp, self.group)
        return collectives.copy_to_group(inp, self.group)

    def whole_gradient(self, parameter: paddle.Tensor | None) -> paddle.Tensor | None:
        """Marks a norm's parameter before a column-parallel GEMM: its gradient is summed over the
        ranks."""
        if parameter is None or self.mode != "column" or not self.is_parallel:
            return parameter
        return collectives.copy_to_group(parameter, self.group)

    def after(self, out: paddle.Tensor, bias: paddle.Tensor | None) -> paddle.Tensor:
        """Runs the collective after the GEMM and adds the bias if it follows the sum."""
        if not self.is_parallel:
            return out
        if self.mode == "column":
            return collectives.gather_features(out, self.group) if self.gather_output else out
        if self.sequence:
            out = collectives.scatter_sequence(out, self.group)
        else:
            out = collectives.sum_over_group(out, self.group)
        return out if bias is None else out + bias.astype(out.dtype)
