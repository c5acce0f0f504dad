"""A module of ``make_graphed_callables`` with its buffers, and its calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from telens import _C
from telens._names import refusal
from telens.pytorch.graphs.options import CaptureHooks
from telens.pytorch.graphs.order import Pass
from telens.pytorch.graphs.wgrads import PendingWgrads, ReplayStream, WeightGradients, without_hooks
from telens.pytorch.module import Module
from telens.pytorch.quantization import autocast

__all__ = ["CallOptions", "Flag", "Passes", "Runner"]


_FLAG = "is_first_microbatch"
Flag = bool | None  # is_first_microbatch; None if it is not passed to the module
_MISSING = object()
_TENSOR = object()  # in place of a tensor among the leaves of a result
_TAKEN_OVER = ("forward", "backward_dw", "reset")  # attributes of a graphed module


@dataclass(frozen=True)
class CallOptions:
    """Options that all callables of a call of make_graphed_callables share."""

    allow_unused: bool
    retain_graph: bool
    needs_flag: bool
    clones_gradients: bool  # returned gradients of parameters are copies
    autocast: dict[str, Any]


class Passes(Protocol):
    """A forward and its backward, on the runner's buffers."""

    def forward(self, on: ReplayStream) -> tuple[torch.Tensor, ...]:
        """Returns the buffers of the outputs."""

    def backward(
        self, gradients: Sequence[torch.Tensor | None], on: ReplayStream
    ) -> Sequence[torch.Tensor | None]:
        """Returns gradients of inputs and parameters, given gradients of the outputs."""

    def make_weight_gradients(self, on: ReplayStream) -> None:
        """Adds up the gradients that the backward deferred."""

    def drop_weight_gradients(self, backward: int) -> None:
        """Like ``WeightGradients.drop``, if they are kept outside of graphs."""


class Runner:
    """A module with its buffers, on one device."""

    def __init__(
        self,
        module: torch.nn.Module,
        sample: tuple[Any, dict[str, Any]],
        enabled: bool,
        hooks: CaptureHooks,
        options: CallOptions,
        pending: PendingWgrads,
    ) -> None:
        args, kwargs = sample
        if not isinstance(args, tuple):
            raise refusal("make_graphed_callables", "sample_args", "a tuple for each module", args)
        self.module = module
        self.hooks = hooks
        self.options = options
        self.pending_wgrads = pending
        self.wgrads = WeightGradients(module)
        self._forward = module.forward
        self.region = functools.partial(autocast, enabled=enabled, **options.autocast)
        self._sample_kwargs = kwargs
        self._leaves, self._structure = tree_flatten((args, kwargs))
        tensors = [each for each in self._leaves if isinstance(each, torch.Tensor)]
        _check_constants(self._leaves)
        self.weights = list(module.parameters())  # frozen ones too
        self.parameters = [each for each in self.weights if each.requires_grad]
        self.device = _check_device([*tensors, *self.parameters, *module.buffers()])
        self.inputs = [each.detach().clone().requires_grad_(each.requires_grad) for each in tensors]
        flagged = options.needs_flag and isinstance(module, Module)
        self.flags: tuple[Flag, ...] = (True, False) if flagged else (None,)
        self.passes: dict[Flag, Passes] = {flag: Called(self, flag) for flag in self.flags}
        self._written: set[int] = set()  # places of inputs that the module changes in place
        self._newest = 0  # the number of the newest forward
        self._is_reset = False

    @property
    def name(self) -> str:
        return f"a graphed {type(self.module).__name__}"

    def take_over(self) -> None:
        """Replaces the module's forward by this one while its mode is the present one."""
        training, forward = self.module.training, self._forward

        def graphed(*args: Any, **kwargs: Any) -> Any:
            if self.module.training != training:
                ReplayStream.take(kwargs)
                self._check_none_pending()
                return forward(*args, **kwargs)
            return self.call(*args, **kwargs)

        own = vars(self.module)
        make_others = getattr(self.module, "backward_dw", self._make_waiting)

        def backward_dw() -> None:
            # The last backward ran in the mode that was not captured, in the module itself.
            if not self.pending_wgrads.is_any() and self.wgrads.wait():
                make_others()
            else:
                self.backward_dw()

        before = {name: own[name] for name in _TAKEN_OVER if name in own}

        def reset() -> None:
            self.reset()
            for name in _TAKEN_OVER:
                own.pop(name, None)
            own.update(before)

        own.update(forward=graphed, backward_dw=backward_dw, reset=reset)

    def as_function(self) -> Callable[..., Any]:
        """Returns a callable of a pipeline."""

        def graphed(*args: Any, **kwargs: Any) -> Any:
            return self.call(*args, **kwargs)

        graphed.backward_dw = self.backward_dw  # type: ignore[attr-defined]
        graphed.reset = self.reset  # type: ignore[attr-defined]
        return graphed

    def reset(self) -> None:
        """Releases graphs and buffers; later calls raise an error."""
        self._is_reset = True
        self.pending_wgrads.drop()
        self.passes, self.inputs = {}, []

    def backward_dw(self) -> None:
        """Computes and adds up the weight gradients that the callable's backward deferred.

        Does nothing without ``delay_wgrad_compute``. Among the callables of a module, the one whose
        backward ran first is next; UsageError for any other.
        """
        if not self.wgrads:
            return
        passes, on = self.pending_wgrads.take(self.name, self.module)
        passes.make_weight_gradients(on)
        self.wgrads.call_hooks()

    def _check_none_pending(self) -> None:
        """Raises an error if a backward outside of the callable deferred gradients: they would be
        mixed with the callable's."""
        if torch.is_grad_enabled() and self.pending_wgrads.is_any():
            raise _C.UsageError(
                f"{self.name}: called in another mode than it was captured in, before backward_dw "
                "made the weights' gradients that its backward left; call backward_dw first, or "
                "run under torch.no_grad()"
            )

    def _make_waiting(self) -> None:
        """Computes deferred gradients of layers inside a module that has no ``backward_dw``."""
        self.wgrads.make()
        self.wgrads.call_hooks()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module on these inputs."""
        if self._is_reset:
            raise _C.UsageError(f"{self.name}: called after its reset(); make the callables again")
        on = ReplayStream.take(kwargs)
        flag = self._take_flag(kwargs)
        self.pending_wgrads.check_pass(self.name, Pass.forward, flag)
        leaves, structure = tree_flatten((args, self._kwargs_like_sample(kwargs)))
        if structure != self._structure:
            raise _C.UsageError(
                f"{self.name}: called with arguments that differ from its sample, which a graph "
                "does not support"
            )
        inputs = []
        for given, sample in zip(leaves, self._leaves, strict=True):
            if isinstance(sample, torch.Tensor):
                inputs.append(self._check_input(given, sample))
            elif isinstance(given, torch.Tensor) or not _are_equal(given, sample):
                raise _C.UsageError(
                    f"{self.name}: an argument is {given!r}; expected {sample!r}, as its "
                    "sample: in a graph it is a constant"
                )
        tensors = _Replay.apply(self, flag, on, *inputs, *self.parameters)
        with torch.no_grad():
            for place in self._written:
                inputs[place].copy_(self.inputs[place])
        return self._result(tensors)

    def _kwargs_like_sample(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns the keywords of the sample, in its order.

        Those at their defaults need not be in both; UsageError names one that only the call has.
        """
        found = {
            name: kwargs.get(name, self._omitted.get(name, _MISSING))
            for name in self._sample_kwargs
        }
        for name, value in kwargs.items():
            if name not in found and not _is_default(name, value, self._defaults):
                raise _C.UsageError(
                    f"{self.name}: called with {name}, which its sample does not have: a graph "
                    f"takes the sample's arguments only; give it in sample_kwargs"
                )
        return {name: value for name, value in found.items() if value is not _MISSING}

    @functools.cached_property
    def _omitted(self) -> dict[str, Any]:
        """Returns the sample's keywords with default values, which a call may omit."""
        return {
            name: sample
            for name, sample in self._sample_kwargs.items()
            if _is_default(name, sample, self._defaults)
        }

    @functools.cached_property
    def _defaults(self) -> dict[str, Any]:
        """Returns the keywords of the module's forward with their defaults."""
        if isinstance(self.module, Module) and type(self.module).forward is Module.forward:
            own = {field.name: field.default for field in self.module._type.inputs}
            neutral = self.module._neutral_of_forward.items()
            return own | {name: argument.default for name, argument in neutral}
        parameters = inspect.signature(self._forward).parameters
        return {name: each.default for name, each in parameters.items()}

    def _check_input(self, given: Any, sample: torch.Tensor) -> torch.Tensor:
        if not isinstance(given, torch.Tensor) or given.shape != sample.shape:
            found = getattr(given, "shape", type(given).__name__)
            raise _C.UsageError(
                f"{self.name}: an input is {found}; expected {tuple(sample.shape)}, as its sample"
            )
        if given.dtype != sample.dtype or given.device != sample.device:
            raise _C.UsageError(
                f"{self.name}: an input is {given.dtype} on {given.device}; expected "
                f"{sample.dtype} on {sample.device}, as its sample"
            )
        return given

    def _take_flag(self, kwargs: dict[str, Any]) -> Flag:
        if not self.options.needs_flag:
            return None
        if not isinstance(kwargs.get(_FLAG), bool):
            raise _C.UsageError(
                f"{self.name}: {_FLAG} must be True or False in each call: the callable was "
                "made with cache_quantized_params=True"
            )
        flag = kwargs.pop(_FLAG)
        return flag if isinstance(self.module, Module) else None

    def _result(self, tensors: Sequence[torch.Tensor]) -> Any:
        remaining = iter(tensors)
        leaves = [next(remaining) if each is _TENSOR else each for each in self._output_leaves]
        return tree_unflatten(leaves, self._output_structure)

    # ------------------------------------------------------------------ the module itself

    def fill_inputs(self, inputs: Sequence[torch.Tensor]) -> int:
        """Copies the inputs of a call into the buffers; returns the number of the call."""
        with torch.no_grad():
            for buffer, given in zip(self.inputs, inputs[: len(self.inputs)], strict=True):
                buffer.copy_(given)
        self._newest += 1
        return self._newest

    def run(self, flag: Flag) -> list[torch.Tensor]:
        """Runs the module on its input buffers, inside the region that the caller has entered."""
        tensors = iter(self.inputs)
        leaves = [next(tensors) if isinstance(e, torch.Tensor) else e for e in self._leaves]
        args, kwargs = tree_unflatten(leaves, self._structure)
        if flag is not None:
            kwargs = {**kwargs, _FLAG: flag}
        versions = [each._version for each in self.inputs]
        result, self._output_structure = tree_flatten(self._forward(*args, **kwargs))
        for place, (each, version) in enumerate(zip(self.inputs, versions, strict=True)):
            if each._version != version:
                self._written.add(place)
        made = [each for each in result if isinstance(each, torch.Tensor)]
        self._output_leaves = [
            _TENSOR if isinstance(each, torch.Tensor) else each for each in result
        ]
        return made

    def gradients(
        self, made: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Returns the gradients of inputs and parameters, given the gradients of the results of
        ``run``."""
        pairs = [
            (each, gradient)
            for each, gradient in zip(made, gradients, strict=True)
            if each.requires_grad and gradient is not None
        ]
        leaves = [*self.inputs, *self.parameters]
        wanted = [each for each in leaves if each.requires_grad]
        if not wanted or not pairs:
            return [None] * len(leaves)
        with without_hooks(self.parameters):
            found = torch.autograd.grad(
                [each for each, _ in pairs],
                wanted,
                [gradient for _, gradient in pairs],
                retain_graph=self.options.retain_graph,
                allow_unused=True,
            )
        for leaf, gradient in zip(wanted, found, strict=True):
            is_left = gradient is None and self.wgrads.may_be_left(leaf)
            if gradient is None and not is_left and not self.options.allow_unused:
                raise _C.UsageError(
                    f"{self.name}: {self._describe(leaf)} has no gradient: the outputs do not "
                    "depend on it; set its requires_grad to False, or create the callables "
                    "with allow_unused_input=True"
                )
        remaining = iter(found)
        return [next(remaining) if each.requires_grad else None for each in leaves]

    def _describe(self, leaf: torch.Tensor) -> str:
        """Describes an input by its position among the tensors of the sample, a parameter by its
        name."""
        for name, each in self.module.named_parameters():
            if each is leaf:
                return f"the parameter {name}"
        return next(f"input {i}" for i, each in enumerate(self.inputs) if each is leaf)

    def check_newest(self, number: int) -> None:
        if self._is_reset:
            raise _C.UsageError(f"{self.name}: backward after its reset()")
        if number != self._newest:
            raise _C.UsageError(
                f"{self.name}: backward of a call after which it was called again, which has "
                "overwritten its buffers; make one callable for each micro-batch (_order)"
            )


class Called:
    """A runner without a graph: each forward calls the module and copies its results into the
    output buffers."""

    def __init__(self, runner: Runner, flag: Flag) -> None:
        self._runner, self._flag = runner, flag
        self._made: list[torch.Tensor] = []
        self._outputs: list[torch.Tensor] | None = None  # the buffers

    def forward(self, on: ReplayStream) -> tuple[torch.Tensor, ...]:
        runner = self._runner
        with torch.set_grad_enabled(runner.module.training), runner.region():
            self._made = runner.run(self._flag)
        if self._outputs is None:
            self._outputs = [torch.empty_like(each) for each in self._made]
        with torch.no_grad():
            for buffer, each in zip(self._outputs, self._made, strict=True):
                buffer.copy_(each)
        return tuple(each.detach() for each in self._outputs)

    def backward(
        self, gradients: Sequence[torch.Tensor | None], on: ReplayStream
    ) -> Sequence[torch.Tensor | None]:
        return self._runner.gradients(self._made, gradients)

    def make_weight_gradients(self, on: ReplayStream) -> None:
        self._runner.wgrads.make()

    def drop_weight_gradients(self, backward: int) -> None:
        self._runner.wgrads.drop(backward)


class _Replay(torch.autograd.Function):
    """A call of a runner as one node of the caller's graph."""

    @staticmethod
    def forward(
        ctx: Any, runner: Runner, flag: Flag, on: ReplayStream, *tensors: torch.Tensor
    ) -> Any:
        ctx.runner, ctx.number, ctx.on = runner, runner.fill_inputs(tensors), on
        ctx.flag, ctx.made_by = flag, runner.passes[flag]
        return ctx.made_by.forward(on)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        runner = ctx.runner
        runner.check_newest(ctx.number)
        pending = runner.pending_wgrads
        pending.check_pass(runner.name, Pass.backward, ctx.flag)
        pending.check_others(runner.name, runner.module, runner.wgrads.wait())
        found = ctx.made_by.backward(gradients, ctx.on)
        if runner.wgrads:
            pending.add(runner.name, runner.module, ctx.flag, ctx.made_by, ctx.on)
        return None, None, None, *found


def _check_constants(leaves: Sequence[Any]) -> None:
    """Raises UsageError for values that a call cannot compare with its sample."""
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) and _truth(lambda leaf=leaf: leaf == leaf) is None:
            raise _C.UsageError(
                f"make_graphed_callables: a sample is a {type(leaf).__name__}, whose == does "
                "not return True or False; expected tensors, numbers, strings or similar: pass "
                "it as a tensor"
            )


def _is_default(name: str, value: Any, defaults: dict[str, Any]) -> bool:
    """Returns whether a call without the keyword means the same."""
    return name in defaults and _are_equal(value, defaults[name])


def _are_equal(given: Any, sample: Any) -> bool:
    """Returns whether two values are equal; False if they cannot be compared."""
    return given is sample or _truth(lambda: given == sample) is True


def _truth(compare: Callable[[], Any]) -> bool | None:
    """Returns whether two values are equal; None if the result is not a boolean (arrays)."""
    try:
        return bool(compare())
    except Exception:
        return None


def _check_device(tensors: Sequence[torch.Tensor]) -> torch.device:
    """Returns the common device. Raises UsageError unless it is the CPU or a GPU."""
    devices = {each.device for each in tensors}
    for each in devices:
        if each.type not in ("cpu", "cuda"):
            raise _C.UsageError(
                f"make_graphed_callables: a tensor is on {each}; expected the CPU or a GPU: "
                "make modules and samples there"
            )
    if len(devices) > 1:
        names = " and ".join(sorted(map(str, devices)))
        raise _C.UsageError(
            f"make_graphed_callables: tensors of a module are on {names}; expected a single "
            "device: move its parameters, buffers and samples there"
        )
    return next(iter(devices), torch.device("cpu"))
