"""Marks for torch.compile on functions of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

F = TypeVar("F", bound=Callable)

REASON = (
    "TELens modules run in C++ as in eager mode, so that a compiled model computes the same bits; "
    "they break the graph, so compile without fullgraph=True"
)


def mark_graph_break(function: F) -> F:
    """Like ``torch.compiler.disable(function, reason=...)``, at no cost per call.

    The public decorator wraps the function, which takes longer than a small layer and imports the
    compiler. Here the same two marks are set on the function itself: for Dynamo when it traces a
    caller, and for its frame evaluation when the function runs inside a compiled program. A torch
    version without the second mark uses the wrapper.
    """
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:
        return torch.compiler.disable(function, reason=REASON)
    skip_all = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(function.__code__, skip_all)
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = REASON
    return function
