"""Base classes of feature classes and namespaces."""

from __future__ import annotations

import abc
from typing import Any

from telens import _C

__all__ = ["BaseConfigAPIMapper", "BaseNamespaceAPI"]


class BaseConfigAPIMapper(abc.ABC):
    """What reads a feature's configuration for one call."""

    @abc.abstractmethod
    def parse_config_and_api(self, config: dict, **call: Any) -> tuple[bool, dict | None]:
        """Whether the configuration selects the call, and the part of it that is for the call.

        ``call`` has ``gemm_parsing`` and ``tensor_parsing``, which tell what to match, and the
        call's own arguments, of which ``gemm`` and ``tensor_name`` are what is matched.
        """

    def _process_tensor_config(self, cfg: dict, api_tensor_name: str) -> dict | None:
        """The configuration for one tensor; None: not selected."""
        return _C.matched_config(cfg, None, api_tensor_name)


class BaseNamespaceAPI:
    """Base of what ``telens.debug.<namespace>`` is for a namespace of one's own."""

    name: str
