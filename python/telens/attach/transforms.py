"""Calls of a model whose tensors are not those of a training step."""

from __future__ import annotations

import torch

__all__ = ["is_transforming"]


def is_transforming() -> bool:
    """Returns True inside transforms of ``torch.func`` and while ``torch.jit.trace`` runs.

    Tensors of a transform have no memory to read, and a trace would contain the observer's calls.
    """
    return torch._C._is_tracing() or torch._C._functorch.peek_interpreter_stack() is not None
