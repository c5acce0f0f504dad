"""The base feature LogTensorStats as a class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from telens import _C
from telens._names import nearest
from telens.debug import sessions
from telens.debug.debug_features.generic_feature_api import GenericConfigAPIMapper
from telens.debug.logging import MetricLogger, enable_logging_at_current_step
from telens.debug.registry import api_method
from telens.debug.utils import gather_along_first_dim, gather_tensor_on_last_rank

__all__ = ["LogTensorStats"]

_STATISTICS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "min": torch.min,
    "max": torch.max,
    "mean": torch.mean,
    "std": torch.std,
    "l1_norm": lambda tensor: torch.linalg.vector_norm(tensor, 1),
    "l2_norm": lambda tensor: torch.linalg.vector_norm(tensor, 2),
}


class LogTensorStats(GenericConfigAPIMapper):
    """Statistics of tensors that a script passes: min, max, mean, std, l1_norm, l2_norm.

    The configured base feature LogTensorStats is built in. This class is the base of user-defined
    feature classes. Subclasses may override ``_get_supported_stats_list``, ``_check_params`` and
    ``_check_and_gather_tensor``.
    """

    return_tensor = False

    def _enable_return_tensor(self) -> None:
        self.return_tensor = True

    def _disable_return_tensor(self) -> None:
        self.return_tensor = False

    def _is_tensor_return_enabled(self) -> bool:
        return self.return_tensor

    def _get_supported_stats_list(self) -> set[str]:
        return set(_STATISTICS)

    def _get_current_iteration(self, **kwargs: Any) -> int:
        iteration = kwargs.get("iteration")
        return _C.debug.iteration() if iteration is None else iteration

    def _check_log_frequency(self, config: dict, **kwargs: Any) -> bool:
        return enable_logging_at_current_step(
            self._get_current_iteration(**kwargs),
            int(config.get("freq") or 1),
            config.get("start_step", 0),
            config.get("end_step", -1),
            config.get("start_end_list"),
        )

    def _check_params(self, config: dict, layer_name: str, **kwargs: Any) -> bool:
        """Returns whether the call is due."""
        return self._check_log_frequency(config, **kwargs)

    def _check_and_gather_tensor(
        self, config: dict, layer_name: str, **kwargs: Any
    ) -> tuple[torch.Tensor | None, Any]:
        """Returns the gathered tensor and a handle; None on a rank that does not log."""
        if kwargs.get("skip_reduction"):
            return kwargs["tensor"], None
        group = kwargs.get("reduction_group") or sessions.get_tensor_reduction_group()
        if group is None:
            return gather_tensor_on_last_rank(kwargs["tensor"])
        return gather_along_first_dim(kwargs["tensor"], process_group=group)

    @api_method
    def log_tensor_stats(self, config: dict, layer_name: str, **kwargs: Any) -> Any:
        """Logs the statistics that ``config`` lists under ``stats``, and returns them.

        Accepts the keywords of ``telens.debug.log_tensor_stats``. Returns {statistic: 0-dim float
        tensor}, and also the gathered tensor after ``_enable_return_tensor()``.
        """
        names = [name.lower() for name in config.get("stats", [])]
        for name in names:
            if name not in self._get_supported_stats_list():
                known = sorted(self._get_supported_stats_list())
                raise _C.UsageError(
                    f"{type(self).__name__}: unknown statistic '{name}'{nearest(name, known)}; "
                    f"it has {', '.join(known)}"
                )
        logged: dict[str, torch.Tensor] = {}
        tensor = None
        if self._check_params(config, layer_name, **kwargs):
            tensor, _ = self._check_and_gather_tensor(config, layer_name, **kwargs)
        if isinstance(tensor, torch.Tensor) and tensor.numel() > 0:
            iteration = self._get_current_iteration(**kwargs)
            values = tensor.detach().float()
            for name in names:
                if name not in _STATISTICS:
                    continue  # defined by a subclass, which logs it
                logged[name] = _STATISTICS[name](values).cpu()
                title = f"{layer_name}_{kwargs['tensor_name']}_{name}"
                MetricLogger.log_scalar(title, logged[name], iteration)
        return (logged, tensor) if self._is_tensor_return_enabled() else logged
