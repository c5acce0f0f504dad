"""Expert parallelism: tokens go to the ranks that have their experts, and come back."""

from __future__ import annotations

import torch

from telens import _C
from telens._names import refusal
from telens.common.field_types import check_sizes
from telens.pytorch.tensor import QuantizedTensor

__all__ = ["MoEDispatcher"]


class MoEDispatcher:
    """Sends each token to the ranks of ``ep_group`` that have its experts, and adds up the experts'
    results: `moe_permute` and `moe_unpermute` with an all-to-all between them.

    Rank r of n has the experts ``num_experts // n * r`` and following, equally many on each rank.
    Ranks may have any number of tokens, also none. Rows are copied bit for bit in both directions,
    so the experts get the same rows as in a single process, and so do gradients on the way back.
    Every rank of the group calls each method, in the same order.

       dispatcher = te.MoEDispatcher(8, ep_group)
       experts = te.GroupedLinear(dispatcher.num_local_experts, hidden, hidden, bias=False)
       tokens, m_splits = dispatcher.dispatch(x, routing_map, probs)
       out = dispatcher.combine(experts(tokens, m_splits))

    Parameters
    ----------
    num_experts
        over all ranks together, a multiple of their number
    ep_group
        a ``torch.distributed`` group; None: this process has all experts
    """

    def __init__(
        self, num_experts: int, ep_group: torch.distributed.ProcessGroup | None = None
    ) -> None:
        check_sizes("MoEDispatcher", num_experts=num_experts)
        try:
            self._dispatcher = _C.MoEDispatcher(num_experts, ep_group)
        except TypeError:
            raise refusal(
                "MoEDispatcher", "ep_group", "a group that this rank belongs to", ep_group
            ) from None
        self.num_experts = num_experts
        self.ep_group = ep_group
        self._way_back: _C.WayBack | None = None
        self._rows = 0

    @property
    def num_local_experts(self) -> int:
        """How many experts this rank has."""
        return self._dispatcher.num_local_experts

    @property
    def first_expert(self) -> int:
        """The number of this rank's first expert among all."""
        return self._dispatcher.first_expert

    def dispatch(
        self,
        hidden: torch.Tensor,
        routing_map: torch.Tensor,
        probs: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[int]]:
        """Sends this rank's tokens to the ranks of their experts, and receives tokens for its own.

        On a GPU the host synchronizes to read the row counts. Raises UsageError while another
        dispatch is not combined yet, and on all ranks if they differ in width, dtype, probs or
        required gradients.

        Parameters
        ----------
        hidden
            [tokens, hidden], in high precision
        routing_map
            [tokens, num_experts], 1 (True) if a token is routed to an expert
        probs
            [tokens, num_experts]: the weights of a token's rows in `combine`; None: each row has
            weight 1

        Returns
        -------
        (rows [sum(m_splits), hidden] by expert, then by sending rank, then by token; m_splits, the
        rows per local expert, for GroupedLinear and Fp8Padding)
        """
        tokens, _, m_splits = self._send(hidden, routing_map, None, probs)
        return tokens, m_splits

    def dispatch_with_probs(
        self, hidden: torch.Tensor, routing_map: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """`dispatch` with the probabilities of the rows: (rows, their probs [rows], m_splits).

        For experts that weight their rows themselves; `combine` then adds rows with weight 1.
        """
        return self._send(hidden, routing_map, probs, None)

    def combine(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the experts' rows to their tokens and adds them up: [tokens, width].

        ``rows``: [sum(m_splits), width] in the order of the last `dispatch`, without padding. Sums
        are FP32 and rounded once; a token without experts is 0. A `dispatch` is combined once.
        """
        if self._way_back is None:
            raise _C.UsageError(
                "MoEDispatcher: combine without dispatch; call them in turn, once each"
            )
        if rows.dim() != 2 or rows.size(0) != self._rows:
            raise _C.ShapeError(
                f"MoEDispatcher: rows is {list(rows.shape)}; expected [{self._rows}, width], the "
                "rows that dispatch gave, without padding"
            )
        way_back, self._way_back = self._way_back, None
        return self._dispatcher.combine(rows, way_back)

    def _send(
        self,
        hidden: torch.Tensor,
        routing_map: torch.Tensor,
        probs: torch.Tensor | None,
        weights: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, list[int]]:
        if self._way_back is not None:
            self._way_back = None
            raise _C.UsageError(
                "MoEDispatcher: dispatch was called before the previous dispatch was combined; "
                "call dispatch and combine in turn, or use a separate dispatcher per concurrent "
                "batch (the previous dispatch is discarded)"
            )
        if isinstance(hidden, QuantizedTensor):
            raise refusal("MoEDispatcher", "hidden", "in high precision", hidden)
        for given in (probs, weights):
            if given is not None and given.shape != routing_map.shape:
                raise _C.ShapeError(
                    f"MoEDispatcher: probs are {list(given.shape)}; expected "
                    f"{list(routing_map.shape)}, as routing_map"
                )
        tokens, row_probs, m_splits, self._way_back = self._dispatcher.dispatch(
            hidden, routing_map, probs, weights
        )
        self._rows = tokens.size(0)
        return tokens, row_probs, m_splits
