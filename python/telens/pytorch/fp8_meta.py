"""``module.fp8_meta`` and ``module.quantizers``: the FP8 state as Transformer Engine shows it.

Reading returns the current state. Values written into its tensors apply from the next cast on.
Slots are ordered GEMM by GEMM: input, weight and output in the forward direction, gradients of
output and input in the backward direction.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from telens import _C
from telens.common.recipe import Recipe
from telens.pytorch.quantization import recipe_of

__all__ = ["DIRECTIONS", "RecipeState", "fp8_meta_of", "quantizers_of"]

# {name of a direction: True for the backward one}
DIRECTIONS = {"scaling_fwd": False, "scaling_bwd": True}
_SLOTS_OF_GEMM = {"scaling_fwd": 3, "scaling_bwd": 2}
_NOT_KEPT = "keeps no {}: only delayed scaling has histories and scales from one step to the next"


class RecipeState:
    """One direction of a module: ``fp8_meta["scaling_fwd"]`` or ``["scaling_bwd"]``.

    Under delayed scaling ``scale`` [slots] and ``amax_history`` [length, slots], both FP32, are the
    layer's own tensors; an assignment copies into them. ``scale_inv`` is 1 / ``scale``, and writes
    to it update ``scale``. Other recipes have none of these, and reading raises AttributeError.
    """

    def __init__(self, module: torch.nn.Module, key: str) -> None:
        self._module = weakref.ref(module)
        self._key = key

    @property
    def _adapter(self) -> _C.ModuleAdapter:
        module = self._module()
        if module is None:
            raise _C.UsageError(f"fp8_meta['{self._key}']: its module is gone")
        return module._telens_adapter

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of the newest forward inside an autocast."""
        return recipe_of(self._adapter.newest_recipe())

    @property
    def mode(self) -> str:
        """``forward`` or ``backward``."""
        return "backward" if DIRECTIONS[self._key] else "forward"

    @property
    def num_quantizers(self) -> int:
        """Number of slots."""
        return _SLOTS_OF_GEMM[self._key] * self._adapter.num_gemms

    @property
    def dtype(self) -> _C.DType:
        """The FP8 format of the direction. Raises AttributeError before any forward in FP8."""
        made = [each for each in self.make_quantizers() if each is not None]
        if not made:
            raise AttributeError(f"fp8_meta['{self._key}'] {_NOT_KEPT.format('dtype')}")
        return made[0].dtype

    def make_quantizers(self) -> list[_C.Quantizer | None]:
        """The quantizers that the layer uses, slot by slot."""
        return self._adapter.quantizers(DIRECTIONS[self._key])

    def _window(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        recipe = self.recipe
        window = self._adapter.amax_window(DIRECTIONS[self._key])
        kept = window is not None and (
            recipe is None or recipe.delayed() or self._has_requests(window[1])
        )
        if window is None or not kept:
            raise AttributeError(f"fp8_meta['{self._key}'] {_NOT_KEPT.format(name)}")
        return window

    def _has_requests(self, scale: torch.Tensor) -> bool:
        """Whether quantizers of the recipe, a custom one, take their scales from this tensor."""
        memory = scale.untyped_storage().data_ptr()
        scales = (getattr(each, "scale", None) for each in self.make_quantizers())
        return any(
            isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() == memory
            for each in scales
        )

    @property
    def amax_history(self) -> torch.Tensor:
        """[length, slots]; row 0 collects the running iteration."""
        return self._window("amax_history")[0]

    @amax_history.setter
    def amax_history(self, values: torch.Tensor) -> None:
        _write(self.amax_history, values)

    @property
    def scale(self) -> torch.Tensor:
        """[slots]: the factors of values before they are rounded to codes."""
        return self._window("scale")[1]

    @scale.setter
    def scale(self, values: torch.Tensor) -> None:
        _write(self.scale, values)

    @property
    def scale_inv(self) -> torch.Tensor:
        """[slots]: 1 / scale."""
        return _Inverse.of(self._window("scale_inv")[1])

    @scale_inv.setter
    def scale_inv(self, values: torch.Tensor) -> None:
        _write(self.scale_inv, values)


@torch.no_grad()
def _write(own: torch.Tensor, values: torch.Tensor) -> None:
    own.copy_(values)


class _Origin:
    """A scale and its inverse. ``write_back`` updates the scale after writes to the inverse."""

    def __init__(self, scale: torch.Tensor) -> None:
        self._scale = scale
        self.inverse = scale.detach().reciprocal()
        self._seen = self.inverse.clone()

    @torch.no_grad()
    def write_back(self) -> None:
        """Updates the scale. The host does not wait for the device, and graphs can capture it."""
        # Compares bits: ``.data`` and inference tensors have no version counter, and NaN != NaN.
        changed = self.inverse.view(torch.int32) != self._seen.view(torch.int32)
        # A scale that already has this inverse is unchanged: 1 / (1 / x) may differ from x in bits.
        written = changed & (self._scale.reciprocal() != self.inverse)
        self._scale.copy_(torch.where(written, self.inverse.reciprocal(), self._scale))
        self._seen.copy_(self.inverse)

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is the inverse, or a view of it."""
        mine = self.inverse.untyped_storage().data_ptr()
        return tensor.layout is torch.strided and tensor.untyped_storage().data_ptr() == mine


class _Inverse(torch.Tensor):
    """1 / scale, or a view of it, whose changes in place reach the scale."""

    _origin: _Origin

    @classmethod
    def of(cls, scale: torch.Tensor) -> _Inverse:
        origin = _Origin(scale)
        return cls._view(origin.inverse, origin)

    @classmethod
    def _view(cls, tensor: torch.Tensor, origin: _Origin) -> _Inverse:
        view = tensor.as_subclass(cls)
        view._origin = origin
        return view

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        origins = {id(each): each for each in _origins_in([args, kwargs])}.values()
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            if origins and _may_write(func, kwargs):
                for each in origins:
                    each.write_back()
            return cls._following(result, origins)

    @classmethod
    def _following(cls, result: Any, origins: Iterable[_Origin]) -> Any:
        """Returns the result; tensors in it that share memory with an inverse are watched too."""
        if type(result) in (list, tuple):
            return type(result)(cls._following(each, origins) for each in result)
        if isinstance(result, torch.Tensor) and not hasattr(result, "_origin"):
            for origin in origins:
                if origin.owns(result):
                    return cls._view(result, origin)
        return result


# `__setitem__`, `__iadd__` and other in-place operators, when called by these names.
_IN_PLACE = re.compile(
    r"__setitem__|__i(?:add|sub|mul|truediv|floordiv|mod|pow|and|or|xor|[lr]shift)__|.*[^_]_"
)


def _may_write(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a function may modify its arguments, by schema, name, or keywords."""
    schema = getattr(func, "_schema", None)
    if schema is not None and schema.is_mutable:
        return True
    is_requested = kwargs.get("out") is not None or kwargs.get("inplace", False)
    # "add_.Tensor" is an overload's name.
    name = getattr(func, "__name__", "").partition(".")[0]
    return bool(is_requested) or _IN_PLACE.fullmatch(name) is not None


def _origins_in(arguments: Any) -> Iterator[_Origin]:
    """Yields the origins of the inverses in arguments, including lists and keywords."""
    if isinstance(arguments, _Inverse):
        if hasattr(arguments, "_origin"):
            yield arguments._origin
    elif isinstance(arguments, Mapping):
        yield from _origins_in(list(arguments.values()))
    elif isinstance(arguments, list | tuple):
        for each in arguments:
            yield from _origins_in(each)


def fp8_meta_of(module: torch.nn.Module) -> dict[str, Any]:
    """Returns a module's dictionary, updated to its current state. Keys of users are kept."""
    meta = module.__dict__.setdefault("_telens_fp8_meta", {})
    adapter = module._telens_adapter
    native = adapter.newest_recipe()
    recipe = recipe_of(native)
    meta.setdefault("fp8_group", None)
    meta["fp8_checkpoint"] = native is not None or adapter.amax_window(False) is not None
    meta["num_gemms"] = adapter.num_gemms
    if recipe is not None:
        meta["recipe"] = recipe
        largest = getattr(recipe, "fp8_format", None)
        if largest is not None:
            meta["fp8_max_fwd"] = largest.value.max_fwd
            meta["fp8_max_bwd"] = largest.value.max_bwd
    if meta["fp8_checkpoint"]:
        for key in DIRECTIONS:
            state = meta.get(key)
            if not isinstance(state, RecipeState) or state._module() is not module:
                meta[key] = RecipeState(module, key)
    return meta


def quantizers_of(module: torch.nn.Module) -> dict[str, list[_C.Quantizer | None]]:
    """Returns the quantizers by direction and slot; empty lists before any forward in FP8."""
    adapter = module._telens_adapter
    return {key: adapter.quantizers(backward) for key, backward in DIRECTIONS.items()}
