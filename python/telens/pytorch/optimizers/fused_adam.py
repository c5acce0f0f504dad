"""Adam over lists of tensors, with Transformer Engine's arguments and state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from telens import _C
from telens._names import rejects_bools
from telens.pytorch.optimizers.multi_tensor import (
    multi_tensor_adam,
    multi_tensor_adam_capturable,
    multi_tensor_adam_param_remainder,
    multi_tensor_applier,
    refuse_sparse,
    zero_gradients,
)
from telens.pytorch.tensor import Float8CurrentScalingQuantizer, QuantizedTensor

__all__ = ["FusedAdam"]

_STATES = ("exp_avg", "exp_avg_sq", "master_param")
# uint8 means FP8 (E4M3) with one scale.
_MOMENT_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8)
_MASTER_DTYPES = (torch.float32, torch.float16)
# FP16 states are scaled so that their largest value is half of FP16's: moments may double in a step
# before the scale follows.
_FP16_RANGE = torch.finfo(torch.float16).max / 2


class FusedAdam(torch.optim.Optimizer):
    """Adam or AdamW, equal to torch's, in FP32 for every dtype.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay
        as of ``torch.optim.AdamW``, but without weight decay by default
    amsgrad
        must be False
    bias_correction
        False: the moments are used without correction for their initial zeros
    adam_w_mode
        True: AdamW; False: Adam, weight decay is added to the gradient
    capturable
        learning rate and step are tensors, as CUDA graphs need; gradients are unscaled in the step
        if a ``GradScaler`` calls it
    master_weights
        steps are made on copies of the parameters in ``master_weight_dtype``; required for
        quantized parameters
    master_weight_dtype
        FP32, or FP16 with a scale
    exp_avg_dtype, exp_avg_sq_dtype
        dtypes in which the moments are stored: FP32, BF16, FP16 with a scale, or ``torch.uint8``
        for FP8 (E4M3) with a scale
    use_decoupled_grad
        gradients are read from ``parameter.decoupled_grad``
    store_param_remainders
        FP32 master weights of BF16 parameters are stored as the 16 bits that the parameter lacks;
        not with ``capturable``
    set_grad_none
        the default of ``zero_grad``'s argument; None means True
    """

    @rejects_bools
    def __init__(
        self,
        params: Iterable[torch.nn.Parameter | dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        bias_correction: bool = True,
        adam_w_mode: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
        master_weight_dtype: torch.dtype = torch.float32,
        exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
        set_grad_none: bool | None = None,
    ) -> None:
        if amsgrad:
            raise _C.UsageError(
                "FusedAdam: amsgrad=True is not supported; use torch.optim.AdamW(amsgrad=True)"
            )
        self.name_to_dtype_map = {
            "exp_avg": exp_avg_dtype,
            "exp_avg_sq": exp_avg_sq_dtype,
            "master_param": master_weight_dtype,
        }
        _check_dtypes(self.name_to_dtype_map, master_weights, capturable, store_param_remainders)
        defaults = {
            "lr": torch.tensor(lr, dtype=torch.float32) if capturable else lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        self.adam_w_mode = int(adam_w_mode)
        self.capturable = capturable
        self.master_weights = master_weights
        self.use_decoupled_grad = use_decoupled_grad
        self.store_param_remainders = (
            store_param_remainders and master_weights and master_weight_dtype == torch.float32
        )
        self.set_grad_none = set_grad_none
        # FP32 [1] by parameter and state: stored value * scale is the state's value.
        self._scales: dict[torch.nn.Parameter, dict[str, torch.Tensor]] = {}
        if capturable:
            self._step_supports_amp_scaling = True
            for group in self.param_groups:
                group["lr"] = group["lr"].to(_device_of(group))

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clears the gradients: None, or zeros if ``set_to_none`` is False."""
        zero_gradients(self, set_to_none, self._gradient_attribute)

    @property
    def _gradient_attribute(self) -> str:
        return "decoupled_grad" if self.use_decoupled_grad else "grad"

    # ------------------------------------------------------------------ states

    def initialize_state(
        self, param: torch.nn.Parameter, store_param_remainders: bool = False
    ) -> None:
        """Makes a parameter's states: moments of zeros, and master weights with its values.

        ``store_param_remainders``: the master weights are int16 remainders.
        """
        for name in _STATES[: 3 if self.master_weights else 2]:
            if name == "master_param" and store_param_remainders:
                self._store(param, name, torch.zeros_like(_values(param), dtype=torch.int16))
            elif name == "master_param":
                self.set_scaled_state(param, name, _values(param).float())
            else:
                self.set_scaled_state(param, name, torch.zeros_like(_values(param).float()))

    def get_unscaled_state(
        self, param: torch.nn.Parameter, state_name: str, skip_unscale: bool = False
    ) -> torch.Tensor:
        """Returns a state in FP32, or its int16 remainders, or with ``skip_unscale`` BF16 as is."""
        stored = _local(self.state[param][state_name])
        if stored.dtype == torch.int16 or (skip_unscale and stored.dtype == torch.bfloat16):
            return stored
        if isinstance(stored, QuantizedTensor):
            return stored.dequantize(torch.float32)
        scale = self._scales.get(param, {}).get(state_name)
        return stored.float() if scale is None else stored.float() * scale

    @torch.no_grad()
    def set_scaled_state(
        self, param: torch.nn.Parameter, state_name: str, unscaled_state: torch.Tensor
    ) -> None:
        """Stores a state, given in FP32 (remainders: int16), in the state's own dtype."""
        device = _values(param).device
        value = _local(unscaled_state).to(device)
        dtype = self.name_to_dtype_map[state_name]
        if value.dtype == torch.int16 or dtype in (torch.float32, torch.bfloat16):
            stored = value if value.dtype == torch.int16 else value.to(dtype)
        elif dtype == torch.uint8:
            quantizer = Float8CurrentScalingQuantizer(_C.DType.kFloat8E4M3, device)
            quantizer.set_usage(rowwise=True, columnwise=False)
            stored = quantizer(value)
        else:
            largest = value.abs().max() if value.numel() else value.new_zeros(())
            scale = (largest / _FP16_RANGE).reshape(1)
            self._scales.setdefault(param, {})[state_name] = scale
            stored = (value / torch.where(scale > 0, scale, 1)).to(dtype)
        if stored is _local(unscaled_state) and state_name not in self.state[param]:
            stored = stored.clone()  # the caller's tensor stays the caller's
        self._store(param, state_name, stored)

    def _store(self, param: torch.nn.Parameter, name: str, stored: torch.Tensor) -> None:
        """Writes into the state's tensor if that has the dtype, else replaces it."""
        state = self.state[param]
        before = _local(state[name]) if name in state else None
        if before is not None and type(before) is type(stored) and before.dtype == stored.dtype:
            if before is not stored and not isinstance(stored, QuantizedTensor):
                before.copy_(stored)
                return
            if before is stored:
                return
        if isinstance(param, DTensor):
            stored = DTensor.from_local(
                stored,
                device_mesh=param.device_mesh,
                placements=param.placements,
                shape=param.size(),
                stride=param.stride(),
            )
        state[name] = stored

    def state_dict(self) -> dict[str, Any]:
        """Returns torch's state dictionary with all states in FP32, remainders in int16."""
        saved = super().state_dict()
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for index, param in zip(_indices(saved), parameters, strict=True):
            state = saved["state"].get(index)
            if state is not None:
                saved["state"][index] = {n: self.get_unscaled_state(param, n) for n in state}
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the result of ``state_dict``, converted to the dtypes of this optimizer's states.

        Raises UsageError if only one of the two optimizers stores remainders: an int16 remainder is
        not an FP32 master weight.
        """
        self._check_remainders(state_dict)
        super().load_state_dict(state_dict)
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for index, param in zip(_indices(state_dict), parameters, strict=True):
            loaded = state_dict["state"].get(index)
            if loaded is None:
                continue
            # torch cast them to the parameter's dtype.
            self.state[param] = {}
            for name, value in loaded.items():
                if value is not None:
                    value = _local(value)
                    remainder = value.dtype == torch.int16
                    self.set_scaled_state(param, name, value if remainder else value.float())

    def _stores_remainder(self, param: torch.nn.Parameter) -> bool:
        is_plain = param.dtype == torch.bfloat16 and not isinstance(_local(param), QuantizedTensor)
        return self.store_param_remainders and is_plain

    def _check_remainders(self, state_dict: dict[str, Any]) -> None:
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for index, param in zip(_indices(state_dict), parameters, strict=False):
            master = state_dict["state"].get(index, {}).get("master_param")
            if master is None:
                continue
            stored = _local(master).dtype == torch.int16
            if stored != self._stores_remainder(param):
                raise _C.UsageError(
                    f"FusedAdam.load_state_dict: the master weight of parameter {index} is "
                    f"{'an int16 remainder' if stored else 'in FP32'}, but this optimizer has "
                    f"store_param_remainders={self.store_param_remainders}; give the optimizer the "
                    "option that the checkpoint was saved with"
                )

    # ------------------------------------------------------------------ steps

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        grad_scaler: torch.amp.GradScaler | None = None,
    ) -> Any:
        """Makes one step, and returns the closure's result.

        ``grad_scaler``: only if ``capturable``; the gradients are scaled by it, and a step with
        gradients that are not finite changes nothing.

        Raises UsageError for sparse gradients, and for quantized parameters without master weights.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            device = _device_of(group)
            noop, inverse = self._scaling(grad_scaler, device)
            if self.capturable:
                step = group.get("step", torch.zeros(1, dtype=torch.int32, device=device))
                group["step"] = step + (noop != 1).to(torch.int32)
            else:
                group["step"] = group.get("step", 0) + 1
            for batch in self._batches(group):
                self._step_batch(group, batch, noop, inverse)
        return loss

    def _scaling(
        self, grad_scaler: torch.amp.GradScaler | None, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the flag of non-finite gradients and the factor of the gradients."""
        noop = torch.zeros(1, dtype=torch.int32, device=device)
        inverse = torch.ones(1, device=device)
        if grad_scaler is not None:
            noop.copy_(grad_scaler._check_inf_per_device(self)[device])
            inverse = grad_scaler._get_scale_async().double().reciprocal().float()
        return noop, inverse

    def _batches(self, group: dict[str, Any]) -> list[_Batch]:
        batches: dict[tuple, _Batch] = {}
        for param in group["params"]:
            gradient = getattr(param, self._gradient_attribute, None)
            if gradient is None:
                continue
            refuse_sparse("FusedAdam", gradient)
            quantized = isinstance(_local(param), QuantizedTensor)
            if quantized and not self.master_weights:
                raise _C.UsageError(
                    "FusedAdam: a parameter is quantized, and a step on its codes would be lost in "
                    "their rounding; give master_weights=True"
                )
            remainders = self._stores_remainder(param)
            if not self.state[param]:
                self.initialize_state(param, remainders)
            key = (quantized, remainders, param.dtype, _local(param).device)
            batches.setdefault(key, _Batch(quantized, remainders)).add(param, _local(gradient))
        return list(batches.values())

    def _step_batch(
        self,
        group: dict[str, Any],
        batch: _Batch,
        noop: torch.Tensor,
        inverse: torch.Tensor,
    ) -> None:
        names = _STATES[: 3 if self.master_weights else 2]
        states = [[self.get_unscaled_state(p, name) for p in batch.params] for name in names]
        targets = [_local(p).detach() for p in batch.params]
        lists = [batch.gradients, targets, *states]
        if batch.quantized:  # the codes follow the master weights below
            lists = [batch.gradients, states[2], states[0], states[1]]
        arguments = [
            *(group["lr"], *group["betas"], group["eps"], group["step"]),
            *(self.adam_w_mode, int(group["bias_correction"]), group["weight_decay"]),
        ]
        operation = multi_tensor_adam
        if batch.remainders:
            operation = multi_tensor_adam_param_remainder
        elif self.capturable:
            operation = multi_tensor_adam_capturable
            arguments.append(inverse)
        multi_tensor_applier(operation, noop, lists, *arguments)
        for name, values in zip(names, states, strict=True):
            for param, value in zip(batch.params, values, strict=True):
                if value is not _local(self.state[param][name]):
                    self.set_scaled_state(param, name, value)
        if batch.quantized:
            for param, master in zip(batch.params, states[2], strict=True):
                _local(param).quantize_(master)


class _Batch:
    """Parameters that a single operation updates."""

    def __init__(self, quantized: bool, remainders: bool) -> None:
        self.quantized = quantized
        self.remainders = remainders
        self.params: list[torch.nn.Parameter] = []
        self.gradients: list[torch.Tensor] = []

    def add(self, param: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        self.params.append(param)
        self.gradients.append(gradient)


def _check_dtypes(
    dtypes: dict[str, torch.dtype],
    master_weights: bool,
    capturable: bool,
    store_param_remainders: bool,
) -> None:
    """Raises UsageError for a combination of state dtypes and options that cannot be stepped."""
    if capturable and store_param_remainders and master_weights:
        raise _C.UsageError(
            "FusedAdam: store_param_remainders is True with capturable=True; expected False: a "
            "step with remainders needs the learning rate and the step number on the host. Omit "
            "one of the two options."
        )
    arguments = {"exp_avg": "exp_avg_dtype", "exp_avg_sq": "exp_avg_sq_dtype"}
    expected = dict.fromkeys(arguments, _MOMENT_DTYPES)
    if master_weights:
        arguments["master_param"] = "master_weight_dtype"
        expected["master_param"] = _MASTER_DTYPES
    for name, allowed in expected.items():
        if capturable:  # states are stepped in place
            both = (torch.float32, torch.bfloat16)
            allowed = (torch.float32,) if name == "master_param" else both
        if dtypes[name] not in allowed:
            raise _C.UsageError(
                f"FusedAdam: {arguments[name]} is {dtypes[name]}; expected one of "
                f"{', '.join(map(str, allowed))}{' with capturable=True' if capturable else ''}"
            )


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _values(param: torch.nn.Parameter) -> torch.Tensor:
    """Returns this rank's values of a parameter in high precision."""
    local = _local(param).detach()
    return local.dequantize(torch.float32) if isinstance(local, QuantizedTensor) else local


def _device_of(group: dict[str, Any]) -> torch.device:
    return _local(group["params"][0]).device if group["params"] else torch.device("cpu")


def _indices(state_dict: dict[str, Any]) -> Iterable[int]:
    return chain.from_iterable(group["params"] for group in state_dict["param_groups"])
