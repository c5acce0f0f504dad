"""SGD over lists of tensors, with Transformer Engine's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from telens import _C
from telens._names import rejects_bools
from telens.pytorch.optimizers.multi_tensor import (
    multi_tensor_applier,
    multi_tensor_sgd,
    refuse_sparse,
    zero_gradients,
)
from telens.pytorch.tensor import QuantizedTensor

__all__ = ["FusedSGD"]


class FusedSGD(torch.optim.Optimizer):
    """Stochastic gradient descent, equal to ``torch.optim.SGD``, in FP32 for every dtype.

    Parameters
    ----------
    params, lr, momentum, dampening, weight_decay, nesterov
        as of ``torch.optim.SGD``
    wd_after_momentum
        weight decay is added to the update instead of the gradient
    materialize_master_grads
        no effect: master parameters of apex are not supported
    set_grad_none
        the default of ``zero_grad``'s argument; None means True
    """

    @rejects_bools
    def __init__(
        self,
        params: Iterable[torch.nn.Parameter | dict[str, Any]],
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool | None = None,
    ) -> None:
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise _C.UsageError(f"FusedSGD: {name} is {value}; expected a number from 0 on")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise _C.UsageError(
                f"FusedSGD: nesterov with momentum={momentum} and dampening={dampening}; expected "
                "momentum above 0 and dampening=0"
            )
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
            },
        )
        self.wd_after_momentum = wd_after_momentum
        self.set_grad_none = set_grad_none

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clears the gradients: None, or zeros if ``set_to_none`` is False."""
        zero_gradients(self, set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one step, and returns the closure's result.

        Raises UsageError for sparse gradients.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        # Tensors in a list share dtype, device and whether their momentum exists.
        batches: dict[tuple, list[list[torch.Tensor]]] = {}
        quantized = []
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            refuse_sparse("FusedSGD", parameter.grad)
            values = parameter.detach()
            if isinstance(parameter, QuantizedTensor):
                values = parameter.dequantize(torch.float32).detach()
                quantized.append((parameter, values))
            state = self.state[parameter]
            first = state.get("momentum_buffer") is None
            if first:
                state["momentum_buffer"] = torch.zeros_like(values)
            batch = batches.setdefault((values.dtype, values.device, first), [[], [], []])
            tensors = (parameter.grad, values, state["momentum_buffer"])
            for each, tensor in zip(batch, tensors, strict=True):
                each.append(tensor)
        for (_, device, first), lists in batches.items():
            multi_tensor_applier(
                *(multi_tensor_sgd, torch.zeros(1, dtype=torch.int32, device=device), lists),
                *(group["weight_decay"], group["momentum"], group["dampening"], group["lr"]),
                *(group["nesterov"], first, self.wd_after_momentum, 1.0),
            )
        for parameter, values in quantized:
            parameter.quantize_(values)
