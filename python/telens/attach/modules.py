"""Which modules are watched, and their names."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.utils import parametrize

from telens import _C

__all__ = [
    "Weight",
    "count_fp8_layers",
    "is_fp8_region_active",
    "is_named",
    "names_of_modules",
    "own_tensors",
    "watched_modules",
]

_CONVOLUTIONS = (
    torch.nn.Conv1d,
    torch.nn.Conv2d,
    torch.nn.Conv3d,
    torch.nn.ConvTranspose1d,
    torch.nn.ConvTranspose2d,
    torch.nn.ConvTranspose3d,
)
_NORMS = (
    torch.nn.LayerNorm,
    torch.nn.RMSNorm,
    torch.nn.GroupNorm,
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
    torch.nn.SyncBatchNorm,
)
_KINDS = (torch.nn.Linear, torch.nn.Embedding, torch.nn.EmbeddingBag, *_CONVOLUTIONS, *_NORMS)

_INT8_MAX = 127  # the code of a row's largest magnitude in bitsandbytes' Linear8bitLt

# Classes of Transformer Engine, which are no torch.nn.Linear.
_TRANSFORMER_ENGINE = {
    "GroupedLinear",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "RMSNorm",
}

# Names that wrappers add to the path of a module: DDP, torch.compile, FSDP1, checkpoint_wrapper.
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def _is_watched(module: torch.nn.Module) -> bool:
    """Returns True for torch's own kinds, those of transformers and Transformer Engine, and norms.

    Model libraries define their own RMSNorm and LayerNorm classes. They have one weight per channel
    and no children.
    """
    if isinstance(module, _KINDS):
        return True
    name = type(module).__name__
    package = type(module).__module__
    if name == "Conv1D" and package == "transformers.pytorch_utils":
        return True
    if name in _TRANSFORMER_ENGINE and package.startswith("transformer_engine."):
        return True
    weight = getattr(module, "weight", None)
    is_norm = name.endswith(("RMSNorm", "LayerNorm"))
    return is_norm and isinstance(weight, torch.Tensor) and not any(True for _ in module.children())


def _name_of(path: str) -> str:
    """Returns the path of ``named_modules()`` without the names that wrappers add.

    Names do not depend on whether the model is wrapped.
    """
    parts = path.split(".")
    while parts and parts[0] in _WRAPPERS:
        parts.pop(0)
    parts = [part for part in parts if part not in _WRAPPERS[1:]]
    return ".".join(parts)


def names_of_modules(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields (name, module) for each module; the name of the root is empty."""
    for path, module in root.named_modules():
        yield _name_of(path), module


def is_named(name: str, module: torch.nn.Module, patterns: Iterable[re.Pattern]) -> bool:
    """Returns True if a pattern matches the whole name or the whole class name of the module."""
    words = (name, type(module).__name__)
    return any(pattern.fullmatch(word) for pattern in patterns for word in words)


def watched_modules(
    root: torch.nn.Module, patterns: Iterable[re.Pattern] = ()
) -> Iterator[tuple[str, torch.nn.Module, bool]]:
    """Yields (name, module, whether its class is unknown) for each module to watch.

    These are Linear, Embedding, convolutions and norms below ``root``, and modules of any class
    that one of the patterns names. A root that is watched itself has the name of its class.
    """
    for name, module in names_of_modules(root):
        known = _is_watched(module)
        if known or is_named(name, module, patterns):
            yield name or type(root).__name__, module, not known


def is_fp8_region_active() -> bool:
    """Returns True inside a region of fp8_autocast, ours or Transformer Engine's."""
    if _C.is_fp8_enabled():
        return True
    for name in ("transformer_engine.pytorch.quantization", "transformer_engine.pytorch.fp8"):
        manager = getattr(sys.modules.get(name), "FP8GlobalStateManager", None)
        if manager is not None:
            return bool(manager.is_fp8_enabled())
    return False


def count_fp8_layers(modules: Iterable[torch.nn.Module]) -> int:
    """Returns the number of modules that compute in FP8 if such a region is active.

    These are modules of telens.pytorch and Transformer Engine and their subclasses, except norms.
    """
    return sum(
        any(
            base.__module__.startswith(("telens.pytorch.", "transformer_engine."))
            and not base.__name__.endswith("Norm")
            for base in type(module).__mro__
        )
        for module in modules
    )


class Weight:
    """The weight of a module, in each of its forwards.

    A parametrized weight is a new tensor in each forward, and computing it a second time may change
    the training: spectral_norm updates its vectors. So it is taken when the module computes it.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._computed: torch.Tensor | None = None
        self.handle: Any = None
        self._parametrized = parametrize.is_parametrized(module, "weight")
        if self._parametrized:
            self.handle = module.parametrizations.weight.register_forward_hook(self._keep)

    def _keep(self, module: Any, args: Any, output: torch.Tensor) -> None:
        self._computed = output

    def decoded(self, weight: torch.Tensor) -> torch.Tensor:
        """Returns the values of a weight that bitsandbytes stores as integers; else the weight."""
        if weight.is_floating_point() or not type(weight).__module__.startswith("bitsandbytes."):
            return weight
        state = getattr(weight, "quant_state", None)
        if state is not None:
            from bitsandbytes.functional import dequantize_4bit

            return dequantize_4bit(weight.detach(), state)
        state = getattr(self._module, "state", None)
        codes = getattr(state, "CB", None)
        if codes is None or getattr(state, "SCB", None) is None:
            return weight
        return codes * (state.SCB.unsqueeze(1) / _INT8_MAX)

    @property
    def parameter(self) -> torch.Tensor | None:
        """The parameter that an optimizer trains, None if there is not exactly one."""
        if self._parametrized:
            return None
        weight = getattr(self._module, "weight", None)
        return weight if isinstance(weight, torch.Tensor) else None

    def forget(self) -> None:
        """Drops the tensor of a forward that is not recorded."""
        self._computed = None

    def take(self) -> torch.Tensor | None:
        """Returns the tensor of the forward that has just run."""
        if not self._parametrized:
            return self.parameter
        computed, self._computed = self._computed, None
        if computed is None:  # inside of torch.nn.utils.parametrize.cached()
            computed = parametrize._cache.get((id(self._module), "weight"))
        return computed


def own_tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yields the floating-point tensors in the arguments or results of a forward."""
    if isinstance(values, torch.Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, (tuple, list)):
        for each in values:
            yield from own_tensors(each)
    elif isinstance(values, dict):
        for each in values.values():
            yield from own_tensors(each)
