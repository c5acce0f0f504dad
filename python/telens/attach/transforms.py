"""Recognizes calls of a model that are not part of a training step."""

from __future__ import annotations

import torch

__all__ = ["is_transforming"]


def is_transforming() -> bool:
    """Returns True in transforms of ``torch.func``, FakeTensorMode and ``torch.jit.trace``.

    Tensors of a transform have no memory to read, and a trace would contain the observer's calls.
    """
    is_fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return is_fake or is_transformed or torch._C._is_tracing()
