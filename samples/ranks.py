"""The ranks that train a model with tensor, sequence, context, data and expert parallelism.

Started by torchrun.

torchrun --nproc-per-node 2 samples/gpt.py --tp 2 --sp
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist

import telens
from telens.pytorch.attention.dot_product_attention.context_parallel import (
    get_batch_on_this_cp_rank,
)


def add_layer_options(parser: argparse.ArgumentParser) -> None:
    """The options of ranks: how they divide layers and sequences."""
    parser.add_argument("--tp", type=int, default=1, help="ranks that share each layer")
    parser.add_argument(
        "--sp", action="store_true", help="they divide the sequence between the layers too"
    )
    parser.add_argument(
        "--cp", type=int, default=1, help="ranks that share each sequence, in attention too"
    )
    parser.add_argument(
        "--cp-comm-type",
        default="p2p",
        choices=("p2p", "all_gather", "a2a"),
        help="how attention sees the keys of all of them",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    add_layer_options(parser)
    parser.add_argument("--dp", type=int, default=1, help="groups of ranks that share the batch")


class Ranks:
    """The groups of this process among tp * cp * dp ranks.

    The ranks of a tensor-parallel group have consecutive numbers, and so have the ranks that share
    a sequence.
    """

    def __init__(
        self,
        tp: int = 1,
        sequence_parallel: bool = False,
        dp: int = 1,
        cp: int = 1,
        cp_comm_type: str = "p2p",
        options: str | None = None,  # as the user gave them
    ) -> None:
        world = int(os.environ.get("WORLD_SIZE", "1"))
        wanted = tp * cp * dp
        if wanted != world:
            raise telens.UsageError(
                f"{options or f'--tp {tp} --cp {cp} --dp {dp}'}: {wanted} is their product, and "
                f"the number of ranks is {world}; start with torchrun --nproc-per-node {wanted}, "
                f"or give numbers whose product is {world}"
            )
        self._become(tp, sequence_parallel, cp, dp, world)
        self.cp_comm_type = cp_comm_type

    @classmethod
    def alone(cls) -> Ranks:
        """Returns a single rank, even in a process that belongs to a larger group."""
        ranks = cls.__new__(cls)
        ranks._become(1, False, 1, 1, 1)
        return ranks

    def _become(self, tp: int, sequence_parallel: bool, cp: int, dp: int, world: int) -> None:
        self.tp, self.cp, self.dp = tp, cp, dp
        self.sequence_parallel = sequence_parallel and tp > 1
        self.rank, self.tp_group, self.cp_group, self.dp_group = 0, None, None, None
        if world == 1:
            return
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        # Every rank must create all groups, in the same order.
        for first in range(0, world, tp):
            group = dist.new_group(list(range(first, first + tp)), group_desc="tensor_parallel")
            if first <= self.rank < first + tp:
                self.tp_group = group
        for first in range(tp):  # they have the same parts of layers, and other tokens
            group = dist.new_group(list(range(first, world, tp)), group_desc="data_parallel")
            if self.rank % tp == first:
                self.dp_group = group
        for first in range(0, world, tp * cp):
            for own in range(first, first + tp):
                ranks = list(range(own, first + tp * cp, tp))
                group = dist.new_group(ranks, group_desc="context_parallel")
                if self.rank in ranks:
                    self.cp_group = group

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def world(self) -> dist.ProcessGroup | None:
        return dist.group.WORLD if self.tp_group is not None else None

    def layer_options(self) -> dict:
        """Arguments of parallel layers."""
        if self.tp == 1:
            return {}
        return {
            "tp_group": self.tp_group,
            "set_parallel_mode": True,
            "sequence_parallel": self.sequence_parallel,
        }

    def own_batch(self, x: torch.Tensor) -> torch.Tensor:
        """Returns this rank's columns of [seq, batch]."""
        return x.chunk(self.dp, 1)[self.rank // (self.tp * self.cp)] if self.dp > 1 else x

    def own_sequence(self, x: torch.Tensor) -> torch.Tensor:
        """Returns this rank's rows of [seq, ...] under context and sequence parallelism."""
        if self.cp > 1:
            x, _, _ = get_batch_on_this_cp_rank(None, x, None, None, self.cp_group, "sbhd")
        return x.chunk(self.tp)[self.rank % self.tp] if self.sequence_parallel else x

    def share_sequences(self, layer: torch.nn.Module) -> None:
        """Passes the ranks that share a sequence to a Transformer layer."""
        if self.cp > 1:
            layer.set_context_parallel_group(
                self.cp_group, dist.get_process_group_ranks(self.cp_group), None, self.cp_comm_type
            )

    def copy_own_part(self, model: torch.nn.Module, whole: torch.nn.Module) -> None:
        """Copies the parameters of the whole model, or this rank's part of them, except experts."""
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if not getattr(parameter, "allreduce", True):
                    continue
                value = whole.get_parameter(name)
                dim = getattr(parameter, "partition_dim", None)
                if self.tp > 1 and dim is not None:
                    value = value.chunk(self.tp, dim)[self.rank % self.tp]
                parameter.copy_(value)

    def share_of_loss(self) -> float:
        """Returns the weight of this rank's mean loss in the mean over the batch."""
        return 1 / (self.dp * self.cp * (self.tp if self.sequence_parallel else 1))

    def total_loss(self, share: torch.Tensor) -> float:
        """Returns the mean loss over the batch, as the sum of the ranks' shares."""
        return self.total(share.detach().clone()).item()

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """Returns the sum over the ranks that have different tokens."""
        if self.sequence_parallel:
            dist.all_reduce(numbers, group=self.tp_group)
        if self.dp * self.cp > 1:
            dist.all_reduce(numbers, group=self.dp_group)
        return numbers

    def add_gradients(self, model: torch.nn.Module) -> None:
        """Sums the partial gradients over ranks. Layers leave this to the program."""
        for parameter in model.parameters():
            is_divided = getattr(parameter, "tensor_model_parallel", False)
            if self.sequence_parallel and not is_divided:  # the gradient of this rank's rows
                dist.all_reduce(parameter.grad, group=self.tp_group)
            # An expert's gradient is complete: it received the tokens of every rank that shares the
            # batch.
            if self.dp * self.cp > 1 and getattr(parameter, "allreduce", True):
                dist.all_reduce(parameter.grad, group=self.dp_group)

    def finish(self) -> None:
        if self.tp_group is not None:
            dist.barrier()
            dist.destroy_process_group()
