"""The running session as an object, under the name of nvdlfw_inspect.debug_manager."""

from __future__ import annotations

from typing import Any

import torch.distributed

from telens import _C
from telens.debug import base, sessions
from telens.debug.registry import Registry

__all__ = ["DebugManager"]


class DebugManager:
    """The value of ``api.DEBUG_MANAGER`` during a session; wraps functions of ``telens.debug``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise _C.UsageError(
            "DebugManager: call debug.initialize(); api.DEBUG_MANAGER is the session it begins"
        )

    @property
    def _trainer_iteration_count(self) -> int:
        return _C.debug.iteration()

    @property
    def _tensor_reduction_group(self) -> torch.distributed.ProcessGroup | None:
        return sessions.get_tensor_reduction_group()

    @staticmethod
    def load_config() -> None:
        """Does nothing: ``debug.initialize`` has read the configuration."""

    @staticmethod
    def get_extension_api(name: str) -> Any:
        """Returns a namespace, or a call of the namespace ``base``. Throws UsageError."""
        if name == "transformer_engine":
            return sessions.transformer_engine
        if name == "base":
            return base
        api = Registry.namespace_api(name)
        if api is not None:
            return api
        try:
            return getattr(base, name)
        except AttributeError:
            raise _C.UsageError(
                f"DebugManager.get_extension_api: unknown namespace '{name}'; register it with "
                "Registry.register_namespace_api"
            ) from None

    @staticmethod
    def close() -> None:
        """Ends the session."""
        sessions.end_debug()

    @staticmethod
    def list_features() -> list[str]:
        """See ``telens.debug.list_features``."""
        return sessions.list_features()

    @staticmethod
    def explain_features(features: Any = "all") -> str:
        """See ``telens.debug.explain_features``."""
        return sessions.explain_features(features)

    @staticmethod
    def initialize_training_step(train_step: int) -> None:
        """See ``telens.debug.initialize_training_step``."""
        sessions.initialize_training_step(train_step)

    @staticmethod
    def step() -> None:
        """See ``telens.debug.step``."""
        sessions.step()


class _Running(DebugManager):
    def __init__(self) -> None:
        pass


def running() -> DebugManager | None:
    """Returns the running session, or None."""
    return _Running() if _C.debug.is_initialized() else None
