"""Whether a debug session runs, under Transformer Engine's name."""

from __future__ import annotations

from typing import Any

from telens import _C
from telens.debug import sessions

__all__ = ["TEDebugState", "set_weight_tensor_tp_group_reduce"]


class _StateType(type):
    @property
    def debug_enabled(cls) -> bool:
        """True during a session."""
        return _C.debug.is_initialized()

    @debug_enabled.setter
    def debug_enabled(cls, value: Any) -> None:
        if bool(value) != _C.debug.is_initialized():
            begins = "debug.initialize() begins" if value else "debug.end_debug() ends"
            raise _C.UsageError(f"TEDebugState.debug_enabled: it cannot be set; {begins} a session")

    @property
    def weight_tensor_tp_group_reduce(cls) -> bool:
        """The value that ``set_weight_tensor_tp_group_reduce`` set in this session."""
        return sessions.weights_are_reduced()


class TEDebugState(metaclass=_StateType):
    """Whether layers are observed: ``TEDebugState.debug_enabled``."""

    layer_count = 1
    layers_initialized: dict = {}  # noqa: RUF012

    @classmethod
    def initialize(cls) -> None:
        """Does nothing: ``debug_enabled`` follows the session."""

    @classmethod
    def _reset(cls) -> None:
        """Counts layers from 1 again. Use ``debug.end_debug()`` to end a session."""
        cls.layer_count = 1
        cls.layers_initialized.clear()

    @classmethod
    def get_layer_count(cls) -> int:
        """Returns 1, 2, ... for unnamed layers."""
        count = cls.layer_count
        cls.layer_count += 1
        return count

    @staticmethod
    def set_weight_tensor_tp_group_reduce(enabled: bool) -> None:
        """See ``telens.debug.set_weight_tensor_tp_group_reduce``."""
        sessions.set_weight_tensor_tp_group_reduce(enabled)


set_weight_tensor_tp_group_reduce = sessions.set_weight_tensor_tp_group_reduce
