"""``capture_time_hooks``: what runs around the warm-ups and captures of a callable, in no graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from telens import _C

__all__ = ["CaptureHooks", "make_capture_hooks"]

_NAMES = ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks")

# One of these names -> {any key: hook(module) -> None}
Given = Mapping[str, Mapping[Any, Callable[[torch.nn.Module], None]]]


class CaptureHooks:
    """Those of one module."""

    def __init__(self, module: torch.nn.Module, given: Given) -> None:
        self._module, self._given = module, given

    @contextlib.contextmanager
    def around(self, what: str) -> Iterator[None]:
        """``what``: forward or backward."""
        self._call(f"{what}_pre_hooks")
        yield
        self._call(f"{what}_hooks")

    def _call(self, name: str) -> None:
        for hook in self._given.get(name, {}).values():
            if hook(self._module) is not None:
                raise _C.UsageError(
                    f"make_graphed_callables: one of {name} in capture_time_hooks returned a "
                    "value; expected None: it is called as hook(module), and changes nothing"
                )


def make_capture_hooks(
    modules: Sequence[torch.nn.Module], given: Sequence[Given | None] | None
) -> list[CaptureHooks]:
    """By module. Raises UsageError for another number of entries and for names that are none."""
    all_given = [None] * len(modules) if given is None else list(given)
    if len(all_given) != len(modules):
        raise _C.UsageError(
            f"make_graphed_callables: capture_time_hooks has {len(all_given)} entries for "
            f"{len(modules)} modules; give one for each, None for no hooks"
        )
    for each in all_given:
        unknown = sorted(set(each or {}) - set(_NAMES))
        if unknown:
            raise _C.UsageError(
                f"make_graphed_callables: capture_time_hooks has {', '.join(map(repr, unknown))}; "
                f"expected {', '.join(_NAMES)}"
            )
    return [CaptureHooks(*pair) for pair in zip(modules, (e or {} for e in all_given), strict=True)]
