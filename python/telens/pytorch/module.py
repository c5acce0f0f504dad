"""The one adapter that makes a ``torch.nn.Module`` of a module of the C++ core."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, ClassVar

import torch

from telens import _C
from telens.pytorch._compile import mark_graph_break
from telens.pytorch.tensor import initial_parameter

_EXTRA_STATE = "_extra_state"
# Options that say where parameters are made; later on the parameters themselves tell.
_PLACEMENT = ("device", "params_dtype")
# First bytes of what Transformer Engine puts into `_extra_state`: pickle, or torch.save's zip.
_FOREIGN_EXTRA_STATE = (b"\x80", b"PK")


class Module(torch.nn.Module):
    """Base of all modules of TELens.

    The work is done in C++; this object owns the parameters, buffers and children, under the names
    that Transformer Engine gives them, as any ``torch.nn.Module`` does. Parameters may be swapped,
    pruned or parametrized, children may get hooks or be replaced: the C++ side follows before each
    forward.
    """

    _type: ClassVar[_C.ModuleType]  # the C++ class; set in each subclass

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        device = torch.get_default_device()  # of torch.device(...) as a context
        if device.type != "cpu" and _takes(self._type.options[len(args) :], "device"):
            kwargs.setdefault("device", device)
        self._adopt(self._type.construct(*args, **kwargs))

    @mark_graph_break
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._telens_call(self, args, kwargs)

    # ------------------------------------------------------------------ construction

    def _adopt(self, adapter: _C.ModuleAdapter) -> None:
        """Becomes the Python side of a fresh C++ module, with its tensors and children."""
        self._attach(adapter)
        options = adapter.options()
        for name, tensor in adapter.parameters():
            self.register_parameter(name, initial_parameter(tensor, adapter.is_gemm_weight(name)))
        for name, tensor in adapter.buffers():
            self.register_buffer(name, tensor)
        for name, child in adapter.children():
            self.add_module(name, _module_of(child))
        if options.get("bias") is False and "weight" in self._parameters:
            self.register_parameter("bias", None)
        self.name = options.get("name") or None
        for name, value in options.items():
            if not (hasattr(self, name) or callable(value) or name in _PLACEMENT):
                self.__dict__[name] = value

    def _attach(self, adapter: _C.ModuleAdapter) -> None:
        # Straight into the dictionary: what nn.Module.__setattr__ does is not for these two.
        self.__dict__["_telens_adapter"] = adapter
        self.__dict__["_telens_call"] = adapter.make_call()

    def reset_parameters(self) -> None:
        """Fills the parameters anew by the module's own initialization, on the device they are on.

        After ``to_empty`` of a model that was made on "meta", for example.
        """
        devices = {tensor.device for tensor in self.parameters()}
        options = self._telens_adapter.options() | {"device": next(iter(devices), None)}
        fresh = type(self)(**options)
        with torch.no_grad():
            for name, tensor in fresh.state_dict(keep_vars=True).items():
                if isinstance(tensor, torch.nn.Parameter):
                    self.get_parameter(name).copy_(tensor)

    # ------------------------------------------------------------------ copies and pickles

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        adapter = state.pop("_telens_adapter")
        del state["_telens_call"]
        # Without init_method and its like: the values are in the parameters.
        state["_telens_options"] = {
            name: None if callable(value) else value for name, value in adapter.options().items()
        }
        state["_telens_extra_state"] = adapter.extra_state()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = state.copy()
        options = state.pop("_telens_options")
        if "device" in options:  # on "meta" the C++ module allocates and draws nothing
            options["device"] = "meta"
        extra_state = state.pop("_telens_extra_state")
        super().__setstate__(state)
        self._reattach(self._type.construct(**options), extra_state)

    def _reattach(self, adapter: _C.ModuleAdapter, extra_state: torch.Tensor | None) -> None:
        """Moves on to another C++ module, with the state that is not in tensors of this object."""
        self._attach(adapter)
        if extra_state is not None:
            adapter.set_extra_state(extra_state)
        if self.name:
            adapter.set_debug_name(self.name)
        for name, child_adapter in adapter.children():
            child = self._modules.get(name)
            if isinstance(child, Module) and child._type is child_adapter.type:
                child._reattach(child_adapter, child._telens_adapter.extra_state())

    def _apply(self, fn: Any, recurse: bool = True) -> Module:
        # Conversions that swap tensors (torch.__future__) ask that nobody else holds them.
        self._telens_adapter.release_tensors()
        return super()._apply(fn, recurse)

    # ------------------------------------------------------------------ state_dict

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        self._telens_adapter.release_tensors()
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        # A checkpoint of plain torch modules has none; amax histories then start empty.
        if prefix + _EXTRA_STATE in missing_keys:
            missing_keys.remove(prefix + _EXTRA_STATE)

    # ------------------------------------------------------------------ texts

    def set_debug_name(self, name: str) -> None:
        """Names the layer for debug configurations, as the argument ``name`` does."""
        self.name = name
        self._telens_adapter.set_debug_name(name)

    def extra_repr(self) -> str:
        defaults = {field.name: field.default for field in self._type.options}
        return ", ".join(
            f"{name}={value}"
            for name, value in self._telens_adapter.options().items()
            if not (value == defaults[name] or callable(value) or name in _PLACEMENT)
        )


class _WithExtraState:
    """What modules with amax histories and scales have besides."""

    def get_extra_state(self) -> torch.Tensor:
        """Amax histories and scales as plain bytes (uint8, 1-D); empty before any FP8 forward."""
        state = self._telens_adapter.extra_state()
        return torch.empty(0, dtype=torch.uint8) if state is None else state

    def set_extra_state(self, state: torch.Tensor | None) -> None:
        """Restores what ``get_extra_state`` returned."""
        if state is None or not isinstance(state, torch.Tensor) or state.numel() == 0:
            return
        head = bytes(state.flatten()[:2].cpu().to(torch.uint8).tolist())
        if head.startswith(_FOREIGN_EXTRA_STATE):
            warnings.warn(
                f"{type(self).__name__}: the checkpoint's {_EXTRA_STATE} is Transformer Engine's "
                "pickle, which is not read; amax histories and scales start anew",
                stacklevel=2,
            )
            return
        self._telens_adapter.set_extra_state(state.cpu())


_classes: dict[str, type[Module]] = {}


def make_class(module_type: _C.ModuleType, module_name: str) -> type[Module]:
    """The Python class of a C++ module class, with its signature and documentation."""
    bases = (_WithExtraState, Module) if module_type.has_extra_state else (Module,)
    made = type(
        module_type.name,
        bases,
        {"_type": module_type, "__module__": module_name, "__doc__": _documentation(module_type)},
    )
    made.__signature__ = _signature(module_type.options)
    _classes[module_type.name] = made
    return made


def _module_of(adapter: _C.ModuleAdapter) -> Module:
    """The Python module of a C++ child."""
    cls = _classes[adapter.type.name]
    module = cls.__new__(cls)
    torch.nn.Module.__init__(module)
    module._adopt(adapter)
    return module


def _takes(fields: list[_C.FieldInfo], name: str) -> bool:
    return any(field.name == name for field in fields)


def _signature(fields: list[_C.FieldInfo]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        inspect.Parameter(
            field.name,
            kind,
            default=inspect.Parameter.empty if field.default is ... else field.default,
            annotation=field.type,
        )
        for field in fields
    )


def _documentation(module_type: _C.ModuleType) -> str:
    def section(title: str, fields: list[_C.FieldInfo]) -> list[str]:
        lines = ["", title, "-" * len(title)]
        for field in fields:
            default = "" if field.default is ... else f", default {field.default!r}"
            lines += [f"{field.name} : {field.type}{default}", f"    {field.doc}"]
        return lines

    lines = [module_type.doc]
    lines += section("Parameters", module_type.options)
    lines += section("Arguments of forward", module_type.inputs)
    return "\n".join(lines) + "\n"


_C.set_module_class(Module)
