"""The base feature LogTensorStats as a class."""

from __future__ import annotations

from typing import Any

import torch

from telens.debug import sessions
from telens.debug.base import BaseConfigAPIMapper
from telens.debug.registry import api_method

__all__ = ["LogTensorStats"]


class LogTensorStats(BaseConfigAPIMapper):
    """Statistics of tensors that a script hands over: min, max, mean, std, l1_norm, l2_norm.

    What the configuration calls LogTensorStats in the base namespace is built in; this class is for
    feature classes that inherit it.
    """

    def parse_config_and_api(self, config: dict, **call: Any) -> tuple[bool, dict | None]:
        matched = self._process_tensor_config(config, call["tensor_name"])
        return matched is not None, matched

    @api_method
    def log_tensor_stats(
        self,
        config: dict,
        layer_name: str,
        *,
        tensor_name: str,
        tensor: torch.Tensor,
        skip_reduction: bool = False,
        reduction_group: torch.distributed.ProcessGroup | None = None,
        iteration: int | None = None,
        **kwargs: Any,
    ) -> dict[str, torch.Tensor]:
        """Logs what the base features of the configuration ask for, and returns it."""
        return sessions.log_tensor_stats(
            layer_name,
            tensor_name=tensor_name,
            tensor=tensor,
            skip_reduction=skip_reduction,
            reduction_group=reduction_group,
            iteration=iteration,
        )
