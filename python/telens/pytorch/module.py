"""``Module``: adapts a module of the C++ core to ``torch.nn.Module``."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch

from telens import _C
from telens.debug.model_state import NamedModule
from telens.pytorch.checkpointing import checkpoint
from telens.pytorch.checkpoints.extra_state import EXTRA_STATE, WithExtraState
from telens.pytorch.layers.arguments import (
    NeutralArgument,
    check_constructor_positions,
    constructor_arguments,
    constructor_positions,
    forward_arguments,
    forward_positions,
    heads_of_rank,
    note_all_heads,
    take,
    without_aliases,
)
from telens.pytorch.layers.attention_inputs import ARGUMENTS, is_packed, unpacked, with_score_mod
from telens.pytorch.layers.delayed_wgrads import WithDelayedWgrads
from telens.pytorch.layers.grouped_parameters import arrange
from telens.pytorch.layers.inference_params import call_with_cache
from telens.pytorch.layers.initialization import FUNCTIONS, functions_of, reset_own_parameters
from telens.pytorch.parallel.context_parallel import (
    ATTRIBUTES,
    WithContextParallel,
    copy_context,
    without_context,
)
from telens.pytorch.parallel.rng_tracker import apply_seed, fork_dropout, fork_of
from telens.pytorch.tensor import initial_parameter

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


_SCORE_MOD = frozenset(ARGUMENTS)
# Options that place parameters; later the parameters themselves have a device and a dtype.
_PLACEMENT = ("device", "params_dtype")
# `bias` is a tensor or None to everyone who reads it from a module; the option is `use_bias`.
_NOT_ATTRIBUTES = (*_PLACEMENT, "bias")
# The attribute with the names of functions that the module's pickle did not contain.
_LOST = "_telens_lost_functions"


class Module(WithContextParallel, NamedModule, torch.nn.Module):
    """Base class of all modules of TELens.

    The C++ core does the work. This object owns the parameters, buffers and children, under
    Transformer Engine's names, like any ``torch.nn.Module``. Parameters may be swapped, pruned or
    parametrized, children may get hooks or be replaced: the C++ side is updated before each
    forward.
    """

    _type: ClassVar[_C.ModuleType]  # the C++ class; set in each subclass
    # Arguments that are accepted only at values that change nothing; set in each subclass.
    _neutral_arguments: ClassVar[dict[str, NeutralArgument]] = {}
    _neutral_of_forward: ClassVar[dict[str, NeutralArgument]] = {}
    # Arguments of forward that Python handles before the C++ class.
    _heeded_in_python: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Not super(): some of these are torch's own classes too (_LIKE_TORCH), which would make
        # their parameters here.
        torch.nn.Module.__init__(self)
        owner = self._type.name
        names = [field.name for field in self._type.options]
        by_position = dict(zip(names, args, strict=False))
        check_constructor_positions(owner, self._type.options, args)
        kwargs = without_aliases(owner, by_position, kwargs)
        given = kwargs
        kwargs = take(owner, self._neutral_arguments, kwargs)
        if owner == "DotProductAttention":
            args, kwargs = heads_of_rank(names, args, kwargs, given)
        device = torch.get_default_device()  # follows torch.device(...) as a context
        if device.type != "cpu" and _takes(self._type.options[len(args) :], "device"):
            kwargs.setdefault("device", device)
        apply_seed((by_position | kwargs).get("device"))
        if given.get("checkpoint"):
            self.__dict__["checkpoint"] = True
        fork = fork_of(given)
        with fork():
            self._adopt(self._type.construct(*args, **kwargs))
        if given.get("get_rng_state_tracker") is not None:
            for module in self.modules():
                if isinstance(module, Module):
                    module.__dict__["_telens_fork"] = fork
        if "layer_number" in self._neutral_arguments:
            self.__dict__["layer_number"] = given.get("layer_number")
        if owner == "DotProductAttention":
            note_all_heads(self, given)
        if "save_original_input" in given:
            self.save_original_input = given["save_original_input"]
        if given.get("cp_group") is not None:
            self.set_context_parallel_group(
                *(given.get(name, default) for name, default in ATTRIBUTES.items())
            )
        # If sequence_parallel is set, the caller wraps the whole layer in a fork.
        if given.get("get_rng_state_tracker") is not None and not given.get("sequence_parallel"):
            for module in self.modules():
                if isinstance(module, Module) and module._type.name == "DotProductAttention":
                    fork_dropout(module, given["get_rng_state_tracker"])

    @mark_graph_break
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs and not self._heeded_in_python.isdisjoint(kwargs):
            if not _SCORE_MOD.isdisjoint(kwargs):
                kwargs = with_score_mod(f"{self._type.name}.forward", kwargs)
            if "qkv_layer" in self._neutral_of_forward and is_packed(kwargs):
                args, kwargs = unpacked(f"{self._type.name}.forward", args, kwargs)
            if kwargs.get("inference_params") is not None:
                return call_with_cache(self, functools.partial(Module.forward, self), args, kwargs)
            kwargs = take(f"{self._type.name}.forward", self._neutral_of_forward, kwargs)
        return self._telens_call(self, args, kwargs)

    # ------------------------------------------------------------------ construction

    def _adopt(self, adapter: _C.ModuleAdapter) -> None:
        """Becomes the Python side of a new C++ module, with its tensors and children."""
        self._attach(adapter)
        options = adapter.options()
        for name, tensor in adapter.parameters():
            parameter = initial_parameter(tensor, adapter.is_gemm_weight(name))
            for attribute, value in adapter.placement(name).items():
                setattr(parameter, attribute, value)
            if options.get("delay_wgrad_compute") and adapter.is_gemm_weight(name):
                parameter.skip_backward_post_hook = True  # backward_dw calls Megatron-LM's hook
            self.register_parameter(name, parameter)
        for name, tensor in adapter.buffers():
            self.register_buffer(name, tensor)
        for name, child in adapter.children():
            self.add_module(name, _module_of(child))
        if options.get("bias") is False and "weight" in self._parameters:
            self.register_parameter("bias", None)
        self.name = options.get("name") or None
        self._note_context()
        if "bias" in options:
            self.__dict__["use_bias"] = options["bias"]
        for name, value in options.items():
            if not (hasattr(self, name) or callable(value) or name in _NOT_ATTRIBUTES):
                self.__dict__[name] = value

    def _attach(self, adapter: _C.ModuleAdapter) -> None:
        # Bypasses nn.Module.__setattr__, which would register them.
        self.__dict__["_telens_adapter"] = adapter
        call = adapter.make_call()
        self.__dict__["_telens_call"] = _recomputed(call) if "checkpoint" in self.__dict__ else call

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Fills the parameters of the module and its children in place with initial values.

        Parameters on the device "meta" are first allocated on the default device of modules.
        Parameters that FSDP2 has sharded become shards of a common initialization, for which all
        ranks need the same random state. A pickle contains no functions: after unpickling, a module
        that had an init_method warns and fills with the default.

        Parameters
        ----------
        defer_init
            True: no effect
        """
        if defer_init:
            return
        if _LOST in self.__dict__:
            _warn_of_lost_functions(self)
        with self.__dict__.get("_telens_fork", contextlib.nullcontext)():
            reset_own_parameters(self)
        for child in self.children():
            if isinstance(child, Module):
                child.reset_parameters()

    # ------------------------------------------------------------------ copies and pickles

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        adapter = state.pop("_telens_adapter")
        del state["_telens_call"]
        # Process groups and trackers cannot be pickled. The FP8 state is saved below.
        state.pop("_telens_fp8_meta", None)
        state.pop("_telens_get_tracker", None)
        state.pop("_telens_forks", None)
        state.pop("_telens_fork", None)
        state.pop("fsdp_group", None)
        if state.get("tp_group") is not None:
            state["tp_group"] = None
        without_context(state)
        # Callables such as init_method cannot be pickled in general; reset_parameters warns.
        state["_telens_options"] = {
            name: None if callable(value) or name == "tp_group" else value
            for name, value in adapter.options().items()
        }
        state.pop(FUNCTIONS, None)
        lost = [name for name in functions_of(self) if name.endswith("init_method")]
        if lost or _LOST in state:
            state[_LOST] = sorted({*lost, *state.get(_LOST, ())})
        state["_telens_extra_state"] = adapter.extra_state()
        return state

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        state = copy.deepcopy(self.__getstate__(), memo)
        state.pop(_LOST, None)
        copied.__setstate__(state)
        # A copy stays in the process: it shares functions, and draws from the same tracker.
        copied.__dict__[FUNCTIONS] = functions_of(self)
        for name in (_LOST, "_telens_get_tracker", "_telens_fork"):
            if name in self.__dict__:
                copied.__dict__[name] = self.__dict__[name]
        copy_context(self, copied)
        return copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = state.copy()
        options = state.pop("_telens_options")
        if "device" in options:  # on "meta" the C++ module allocates and draws nothing
            options["device"] = "meta"
        extra_state = state.pop("_telens_extra_state")
        if isinstance(state.get("bias"), bool):  # pickled when the option had this name
            state["use_bias"] = state.pop("bias")
        super().__setstate__(state)
        self._reattach(self._type.construct(**options), extra_state)

    def _reattach(self, adapter: _C.ModuleAdapter, extra_state: torch.Tensor | None) -> None:
        """Switches to another C++ module and gives it the state that is not in tensors."""
        self._attach(adapter)
        if extra_state is not None:
            adapter.set_extra_state(extra_state)
        if self.name:
            adapter.set_debug_name(self.name)
        self._reattach_context()
        for name, child_adapter in adapter.children():
            child = self._modules.get(name)
            if isinstance(child, Module) and child._type is child_adapter.type:
                child._reattach(child_adapter, child._telens_adapter.extra_state())

    def _apply(self, fn: Any, recurse: bool = True) -> Module:
        # Conversions that swap tensors (torch.__future__) demand that no other object holds them.
        self._telens_adapter.release_tensors()
        return super()._apply(fn, recurse)

    # ------------------------------------------------------------------ state_dict

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        self._telens_adapter.release_tensors()
        if "single_grouped_weight" in (options := self._telens_adapter.options()):
            arrange(state_dict, prefix, options)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        # A checkpoint of plain torch modules does not contain an FP8 state; amax histories are then
        # kept.
        if prefix + EXTRA_STATE in missing_keys:
            missing_keys.remove(prefix + EXTRA_STATE)

    # ------------------------------------------------------------------ tensor parallelism

    def set_tensor_parallel_group(self, tp_group: torch.distributed.ProcessGroup | None) -> None:
        """Sets the tensor-parallel group of the layers inside, which has ``tp_size`` ranks.

        Copies and unpickled modules have no group. If ``tp_size`` is above 1, they need one before
        their first forward.
        """
        for module in self.modules():
            if isinstance(module, Module):
                module._telens_adapter.set_tensor_parallel_group(tp_group)
                if "tp_group" in module.__dict__:
                    module.__dict__["tp_group"] = tp_group

    # ------------------------------------------------------------------ texts

    def _get_name(self) -> str:
        # repr() starts with this name; "Linear" could be torch's.
        return f"telens.{type(self).__name__}"

    def set_debug_name(self, name: str) -> None:
        """Names the layer for debug configurations, as the argument ``name`` does."""
        self._telens_adapter.set_debug_name(name)
        self.name = name

    def extra_repr(self) -> str:
        defaults = {field.name: field.default for field in self._type.options}
        return ", ".join(
            f"{name}={value}"
            for name, value in self._telens_adapter.options().items()
            if not (value == defaults[name] or callable(value) or name in _PLACEMENT)
        )


def _warn_of_lost_functions(module: Module) -> None:
    if not any(module._telens_adapter.is_gemm_weight(name) for name in module._parameters):
        return  # the children warn
    warnings.warn(
        f"{module._type.name}.reset_parameters: the module was unpickled, and a pickle does not "
        f"contain its {' and '.join(module.__dict__[_LOST])}; weights get the default "
        "initialization. Build the module again to use the function",
        stacklevel=3,
    )


def _recomputed(call: Any) -> Any:
    """Returns a module's call that is recomputed in the backward instead of saving activations."""

    def run(module: Module, args: tuple, kwargs: dict) -> Any:
        if not torch.is_grad_enabled():
            return call(module, args, kwargs)
        return checkpoint(call, module, args, kwargs)

    return run


# Classes that also inherit from torch's class of the same name, so that code which handles that
# class handles these too (PEFT's LoRA, weight decay of transformers' Trainer, initialization).
_LIKE_TORCH = {
    "Linear": (torch.nn.Linear, {}),
    "LayerNorm": (torch.nn.LayerNorm, {"elementwise_affine": True}),
    "RMSNorm": (torch.nn.RMSNorm, {"elementwise_affine": True}),
}
# Layers whose attribute save_original_input frameworks set, without effect: the backward uses the
# quantized input.
_SAVING_INPUT = ("Linear", "LayerNormLinear", "GroupedLinear")


_classes: dict[str, type[Module]] = {}


def make_class(module_type: _C.ModuleType, module_name: str) -> type[Module]:
    """Returns the Python class of a C++ module class, with signature and documentation."""
    bases = (WithExtraState, Module) if module_type.has_extra_state else (Module,)
    if _takes(module_type.options, "delay_wgrad_compute"):
        bases = (WithDelayedWgrads, *bases)
    of_torch, attributes = _LIKE_TORCH.get(module_type.name, (None, {}))
    made = type(
        module_type.name,
        bases if of_torch is None else (*bases, of_torch),
        {
            "_type": module_type,
            "_neutral_arguments": constructor_arguments(module_type.name),
            "_neutral_of_forward": forward_arguments(module_type.name),
            "_heeded_in_python": frozenset(forward_arguments(module_type.name))
            | (_SCORE_MOD if _takes(module_type.inputs, "score_mod") else frozenset()),
            "__module__": module_name,
            "__doc__": _documentation(module_type),
            **({"save_original_input": False} if module_type.name in _SAVING_INPUT else {}),
            **attributes,
        },
    )
    module_type.forward_positions = forward_positions(module_type.name)
    made.__signature__ = _signature(module_type, made._neutral_arguments)
    _classes[module_type.name] = made
    return made


def _module_of(adapter: _C.ModuleAdapter) -> Module:
    """Returns the Python module of a C++ child."""
    cls = _classes[adapter.type.name]
    module = cls.__new__(cls)
    torch.nn.Module.__init__(module)
    module._adopt(adapter)
    return module


def _takes(fields: list[_C.FieldInfo], name: str) -> bool:
    return any(field.name == name for field in fields)


def _signature(
    module_type: _C.ModuleType, neutral: dict[str, NeutralArgument]
) -> inspect.Signature:
    positions = constructor_positions(module_type.name)
    own = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD
            if place < positions
            else inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is ... else field.default,
            annotation=field.type,
        )
        for place, field in enumerate(module_type.options)
    ]
    others = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default)
        for each in neutral.values()
    ]
    return inspect.Signature(own + others)


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
    title = "Arguments of Transformer Engine, at values that change nothing"
    neutral = constructor_arguments(module_type.name) | forward_arguments(module_type.name)
    if neutral:
        lines += ["", title, "-" * len(title)]
        lines += [f"{each.name} : {each.works}" for each in neutral.values()]
    return "\n".join(lines) + "\n"


_C.set_module_class(Module)
