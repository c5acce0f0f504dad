"""Transformer Engine's calls for torch's FullyShardedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as _FullyShardedDataParallel

from telens import _C
from telens.pytorch.module import Module
from telens.pytorch.tensor import QuantizedTensor

__all__ = ["FullyShardedDataParallel", "prepare_te_modules_for_fsdp"]


def prepare_te_modules_for_fsdp(fsdp_root: torch.nn.Module) -> None:
    """Gives each module that FSDP wraps the process group of its shards, as ``fsdp_group``.

    Outputs, gradients and memory do not change: quantized weights are computed from gathered
    parameters in each forward and belong to no rank, and saved activations belong to this rank.

    Parameters
    ----------
    fsdp_root
        a FullyShardedDataParallel. Models of ``fully_shard`` do not need this call

    Raises
    ------
    TypeError
        if fsdp_root is something else
    UsageError
        if a wrapped module stores its weights quantized, which FSDP's flat parameters cannot hold
    """
    if not isinstance(fsdp_root, _FullyShardedDataParallel):
        raise TypeError(
            "prepare_te_modules_for_fsdp: fsdp_root must be a FullyShardedDataParallel, not "
            f"{type(fsdp_root).__name__}; wrap the model first, or omit the call for a model of "
            "fully_shard"
        )
    for wrapper in _FullyShardedDataParallel.fsdp_modules(fsdp_root):
        module = wrapper.module
        if not isinstance(module, Module):
            continue
        for name, parameter in module.named_parameters():
            if isinstance(parameter, QuantizedTensor):
                raise _C.UsageError(
                    f"prepare_te_modules_for_fsdp: {name} of {type(module).__name__} is stored "
                    "quantized; make the model outside of fp8_model_init, or use fully_shard"
                )
        module.__dict__["fsdp_group"] = wrapper.process_group


class FullyShardedDataParallel(_FullyShardedDataParallel):
    """torch's, which calls ``prepare_te_modules_for_fsdp`` on itself."""

    def __init__(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(module, *args, **kwargs)
        prepare_te_modules_for_fsdp(self)
