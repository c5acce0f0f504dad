"""A C++ core module inside a Paddle layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
import torch
from paddle.autograd import PyLayer
from paddle.base.framework import _dygraph_tracer

from telens import _C
from telens.paddle.arguments import check_tensors

__all__ = ["TENSORS", "CoreModule", "autocast_dtype", "view_in_torch"]

# Converts tensors between Paddle and the core through DLPack, without a copy.
TENSORS = _C.ForeignTensors(paddle.Tensor)

_TYPES = {each.name: each for each in _C.module_types()}
_TORCH_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}


def view_in_torch(tensor: paddle.Tensor) -> torch.Tensor:
    """Returns a ``torch.Tensor`` view of the tensor's memory, without an autograd graph."""
    return TENSORS.view(tensor)


def autocast_dtype() -> torch.dtype | None:
    """Returns the dtype of ``paddle.amp.auto_cast``, or None outside it."""
    tracer = _dygraph_tracer()
    if tracer is None:
        return None
    # Outside auto_cast this is "float32", and comparing levels takes six times as long.
    dtype = tracer._amp_dtype
    return None if dtype == "float32" else _TORCH_DTYPES[dtype]


class _Function(PyLayer):
    """A forward of a core module as a function of Paddle's autograd."""

    @staticmethod
    def forward(ctx, forward, arguments, *tensors):
        outputs, ctx.graph = forward(tensors, *arguments)
        if isinstance(outputs, tuple):
            ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx, *gradients):
        return ctx.graph.backward(gradients)


class CoreModule:
    """Creates a C++ module and calls it with Paddle's tensors. Copies and pickles include its
    state.

    ``input_names``: the layer's names of the inputs, for error messages.
    """

    def __init__(
        self, kind: str, options: dict[str, Any], input_names: tuple[str, ...] = ("inp",)
    ) -> None:
        self._kind = kind
        self._options = options
        self._input_names = input_names
        # On "meta" the C++ module neither allocates nor initializes parameters: they are Paddle's.
        device = {"device": "meta"} if _takes_device(kind) else {}
        self._adapter = _TYPES[kind].construct(**options, **device)
        self._foreign = _C.ForeignModule(self._adapter, TENSORS)
        self.parameter_names = [name for name, _ in self._adapter.parameters()]

    def __call__(
        self,
        inputs: Sequence[paddle.Tensor],
        parameters: Sequence[paddle.Tensor | None] = (),
        *,
        training: bool,
        options: dict[str, Any] | None = None,
        main_grads: Any = None,
    ) -> Any:
        """Runs the module's forward. Returns a tensor, or a tuple if the module has several
        outputs.

        Parameters
        ----------
        inputs
            the first arguments of the C++ forward
        parameters
            in the order of ``parameter_names``
        options
            further arguments of the C++ forward, by name; tensors among them are torch's
        main_grads
            a function that the backward calls; it returns, for every tensor of inputs and
            parameters, the buffer to which its gradient is added, or None
        """
        try:
            dtype = autocast_dtype()
            if dtype is None:
                return self._run(inputs, parameters, training, options or {}, main_grads)
            device = "cuda" if inputs[0].place.is_gpu_place() else "cpu"
            with torch.autocast(device, dtype):
                return self._run(inputs, parameters, training, options or {}, main_grads)
        except (AttributeError, RuntimeError):
            # Checked after a failure, so that a successful forward does not pay for it.
            check_tensors(self._kind, **dict(zip(self._input_names, inputs, strict=True)))
            raise

    def _run(self, inputs, parameters, training, options, main_grads):
        tensors = (*inputs, *parameters)
        frozen = tuple([each is None or each.stop_gradient for each in tensors])
        forward = self._foreign.forward
        if False in frozen and paddle.is_grad_enabled():
            arguments = (len(inputs), frozen, options, training, True, main_grads)
            return _Function.apply(forward, arguments, *tensors)
        return forward(tensors, len(inputs), frozen, options, training, False, None)[0]

    # ------------------------------------------------------------------ state

    def state(self) -> torch.Tensor:
        """Returns amax histories and scales as bytes (uint8, 1-D); empty before any FP8 forward."""
        state = self._adapter.extra_state()
        return torch.empty(0, dtype=torch.uint8) if state is None else state

    def set_state(self, state: torch.Tensor) -> None:
        """Restores a result of ``state``; an empty one changes nothing."""
        if state.numel() != 0:
            self._adapter.set_extra_state(state.cpu())

    def set_debug_name(self, name: str) -> None:
        """Names the layer for debug configurations."""
        self._adapter.set_debug_name(name)

    def set_tensor_parallel_group(self, group: Any) -> None:
        """Sets the ``torch.distributed`` group that calls of debug features receive."""
        self._adapter.set_tensor_parallel_group(group)

    def __reduce__(self) -> tuple:
        # A process group is not pickled: it belongs to its process.
        options = {**self._adapter.options(), **self._options, "tp_group": None}
        kept = {name: options[name] for name in self._options if name != "tp_group"}
        return _remake, (self._kind, kept, self._input_names, self.state().numpy())


def _remake(
    kind: str, options: dict[str, Any], input_names: tuple[str, ...], state: Any
) -> CoreModule:
    module = CoreModule(kind, options, input_names)
    module.set_state(torch.from_numpy(state))
    return module


def _takes_device(kind: str) -> bool:
    return any(field.name == "device" for field in _TYPES[kind].options)
