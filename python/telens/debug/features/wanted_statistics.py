"""Shared code of classes that log statistics: records the configured statistics."""

from __future__ import annotations

from typing import Any

import torch

from telens import _C
from telens.debug.features.scheduled import Scheduled
from telens.debug.logging import get_logger
from telens.debug.offered_statistics import here
from telens.debug.registry import api_method

__all__ = ["LogsStatistics"]


class LogsStatistics(Scheduled):
    """Records ``stats`` of the selected tensors on a schedule, over micro-batches and ranks.

    A subclass may override ``inspect_tensor`` and call it by ``super()`` with the arguments that
    it got.
    """

    # The session passes its statistics also to a method that does not name them.
    reads_statistics = True

    def _names_of(self, stats: list[Any]) -> list[str]:
        """Returns the names under which the session knows the statistics of a configuration."""
        return [each if isinstance(each, str) else _name_of_mapping(each) for each in stats]

    @api_method
    def inspect_tensor(
        self,
        config: dict,
        layer_name: str,
        tensor_name: str,
        iteration: int,
        tp_group: torch.distributed.ProcessGroup | None = None,
        tensor: torch.Tensor | None = None,
        rowwise_quantized_tensor: Any = None,
        columnwise_quantized_tensor: Any = None,
        quantizer: Any = None,
        tp_size: int = 1,
    ) -> None:
        """Has the statistics of the call's tensor recorded.

        ``config["stats"]`` is read; of the other arguments the session has its own. Raises
        UsageError outside of a session's call, and for statistics that do not exist.
        """
        owner = type(self).__name__
        if here.statistics is None:
            raise _C.UsageError(
                f"{owner}.inspect_tensor: called outside of a session's inspect_tensor; call it by "
                "super() in that method"
            )
        if not config.get("stats"):
            raise _C.UsageError(f"{owner} in {layer_name}: stats is missing; list statistics")
        reason = here.statistics.want(*self._names_of(config["stats"]))
        if reason:
            get_logger().log_message(
                f"{owner}: {tensor_name}: {reason}", layer_name, extra_cachable_args=tensor_name
            )


def _name_of_mapping(stat: dict) -> str:
    """``{name: {key: value}}`` as the session writes it: name_key_value."""
    ((name, options),) = stat.items()
    return "_".join([name, *(f"{key}_{value}" for key, value in (options or {}).items())])
