"""``multi_tensor_*``: one operation over lists of tensors, under Transformer Engine's names.

Every function accepts ``(chunk_size, noop_flag, tensor_lists, ...)`` and writes into the tensors of
its lists. ``chunk_size`` has no effect. ``noop_flag`` is an int32 tensor of one element. Arithmetic
is FP32 for every dtype, through ``torch._foreach_*``, which fuses the launches on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from telens import _C
from telens._names import rejects_bools
from telens.pytorch.constants import TE_DType_To_Torch

__all__ = [
    "MultiTensorApply",
    "multi_tensor_adam",
    "multi_tensor_adam_capturable",
    "multi_tensor_adam_capturable_master",
    "multi_tensor_adam_fp8",
    "multi_tensor_adam_param_remainder",
    "multi_tensor_applier",
    "multi_tensor_l2norm",
    "multi_tensor_scale",
    "multi_tensor_scale_tensor",
    "multi_tensor_sgd",
    "multi_tensor_unscale_l2norm",
]

Tensors = Sequence[torch.Tensor]

# Values of ``mode``: weight decay is added to the gradient (L2), or to the update (AdamW).
_ADAM_L2 = 0


class MultiTensorApply:
    """Calls an operation on lists of tensors without their empty tensors.

    Parameters
    ----------
    chunk_size
        passed to the operation
    """

    @rejects_bools
    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(
        self,
        op: Callable[..., Any],
        noop_flag_buffer: torch.Tensor | None,
        tensor_lists: Sequence[Tensors],
        *args: Any,
    ) -> Any:
        """Returns what ``op`` returns, or None if all tensors are empty.

        Raises UsageError for lists of different lengths.
        """
        lengths = [len(tensors) for tensors in tensor_lists]
        if len(set(lengths)) != 1:
            raise _C.UsageError(
                f"multi_tensor_applier: tensor_lists have lengths {lengths}; expected lists of "
                "equal length, with the tensors of a parameter at the same index"
            )
        kept = [index for index, each in enumerate(tensor_lists[0]) if each.numel() > 0]
        if not kept:
            return None
        lists = [[_local(tensors[index]) for index in kept] for tensors in tensor_lists]
        return op(self.chunk_size, noop_flag_buffer, lists, *args)


multi_tensor_applier = MultiTensorApply(2048 * 32)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a DTensor, else the tensor."""
    return getattr(tensor, "_local_tensor", tensor)


def _in_fp32(tensors: Tensors) -> list[torch.Tensor]:
    """Returns the tensors that are FP32 themselves and FP32 copies of the others."""
    return [each.detach().float() for each in tensors]


@torch.no_grad()
def _write(targets: Tensors, values: Tensors) -> None:
    for target, value in zip(targets, values, strict=True):
        if target.data_ptr() != value.data_ptr():
            target.copy_(value)


# ------------------------------------------------------------------------------ scale and norms


@rejects_bools
def multi_tensor_scale(
    chunk_size: int, noop_flag: torch.Tensor, tensor_lists: Sequence[Tensors], scale: float
) -> None:
    """Writes ``tensor_lists[0] * scale`` into ``tensor_lists[1]``.

    Sets ``noop_flag`` to 1 if an input is not finite; the outputs are written nevertheless.
    """
    inputs, outputs = tensor_lists
    values = _in_fp32(inputs)
    _note_non_finite(noop_flag, values)
    _write(outputs, torch._foreach_mul(values, scale))


@rejects_bools
def multi_tensor_scale_tensor(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Sequence[Tensors],
    scale: torch.Tensor,
) -> None:
    """``multi_tensor_scale`` with the scale in a one-element tensor."""
    inputs, outputs = tensor_lists
    values = _in_fp32(inputs)
    _note_non_finite(noop_flag, values)
    _write(outputs, torch._foreach_mul(values, scale.detach().float().reshape(())))


@rejects_bools
def multi_tensor_l2norm(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Sequence[Tensors],
    per_tensor: bool | None = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the L2 norm over all elements in ``tensor_lists[0]``, FP32 [1], and per tensor.

    The norms of the tensors are FP32 [tensors], or [0] unless ``per_tensor``. Sets ``noop_flag`` to
    1 if the norm is not finite.
    """
    norms = torch.stack([each.norm() for each in _in_fp32(tensor_lists[0])])
    norm = norms.norm().reshape(1)
    _note_non_finite(noop_flag, [norm])
    return norm, norms if per_tensor else norms[:0]


@rejects_bools
def multi_tensor_unscale_l2norm(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Sequence[Tensors],
    inv_scale: torch.Tensor,
    per_tensor: bool | None = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``multi_tensor_l2norm`` of the tensors times ``inv_scale`` [1], without changing them."""
    scaled = torch._foreach_mul(_in_fp32(tensor_lists[0]), inv_scale.float().reshape(()))
    return multi_tensor_l2norm(chunk_size, noop_flag, [scaled], per_tensor)


def _note_non_finite(noop_flag: torch.Tensor | None, values: Tensors) -> None:
    if noop_flag is None:
        return
    finite = torch.stack([torch.isfinite(each).all().to(noop_flag.device) for each in values])
    noop_flag.masked_fill_(~finite.all(), 1)


# ------------------------------------------------------------------------------ Adam


@rejects_bools
def multi_tensor_adam(
    chunk_size: int,
    noop_flag: torch.Tensor | None,
    tensor_lists: Sequence[Tensors],
    lr: float | torch.Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int | torch.Tensor,
    mode: int,
    bias_correction: bool | int,
    weight_decay: float,
) -> None:
    """One step of Adam.

    Parameters
    ----------
    tensor_lists
        gradients, parameters, first moments, second moments and, optionally, master weights. With
        master weights the step is made on these, and the parameters receive the rounded result.
    step
        the number of this step, from 1 on
    mode
        0: weight decay is added to the gradient (Adam), 1: to the update (AdamW)
    bias_correction
        0: moments are used without correction
    """
    gradients, parameters, moments, variances, *masters = tensor_lists
    main = masters[0] if masters else parameters
    g, p, m, v = map(_in_fp32, (gradients, main, moments, variances))
    if mode == _ADAM_L2 and weight_decay != 0:
        g = torch._foreach_add(g, p, alpha=weight_decay)
    torch._foreach_lerp_(m, g, 1 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, g, g, 1 - beta2)
    # Corrections stay tensors if the step is one, so that a graph can replay them.
    correction1 = 1 - beta1**step if bias_correction else 1.0
    correction2 = 1 - beta2**step if bias_correction else 1.0
    denominators = torch._foreach_sqrt(torch._foreach_div(v, correction2))
    torch._foreach_add_(denominators, epsilon)
    updates = torch._foreach_div(m, correction1)
    torch._foreach_div_(updates, denominators)
    if mode != _ADAM_L2 and weight_decay != 0:
        torch._foreach_add_(updates, p, alpha=weight_decay)
    torch._foreach_mul_(updates, lr)
    torch._foreach_sub_(p, updates)
    for targets, values in ((main, p), (moments, m), (variances, v)):
        _write(targets, values)
    if masters:
        _write(parameters, p)


@rejects_bools
def multi_tensor_adam_capturable(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Sequence[Tensors],
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: torch.Tensor,
    mode: int,
    bias_correction: bool | int,
    weight_decay: float,
    inv_scale: torch.Tensor,
) -> None:
    """``multi_tensor_adam`` with the learning rate, step and gradient scale in tensors of one
    element.

    Gradients are multiplied by ``inv_scale``. No tensor changes if ``noop_flag`` is 1; this is
    decided on the device.
    """
    gradients, *others = tensor_lists
    scaled = torch._foreach_mul(_in_fp32(gradients), inv_scale.float().reshape(()))
    before = [[each.detach().clone() for each in tensors] for tensors in others]
    multi_tensor_adam(
        *(chunk_size, noop_flag, [scaled, *others]),
        *(lr.detach().float().reshape(()), beta1, beta2, epsilon),
        *(step.detach().float().reshape(()), mode, bias_correction, weight_decay),
    )
    skipped = (noop_flag == 1).reshape(())
    for tensors, kept in zip(others, before, strict=True):
        _write(tensors, [torch.where(skipped, k, t) for k, t in zip(kept, tensors, strict=True)])


# The same function: it accepts master weights as an optional fifth list.
multi_tensor_adam_capturable_master = multi_tensor_adam_capturable


@rejects_bools
def multi_tensor_adam_param_remainder(
    chunk_size: int,
    noop_flag: torch.Tensor | None,
    tensor_lists: Sequence[Tensors],
    *args: Any,
) -> None:
    """``multi_tensor_adam`` with master weights of which only the low 16 bits are stored.

    The fifth list has int16 remainders: the FP32 bits are the BF16 parameter's bits in the upper
    half plus the signed remainder.
    """
    gradients, parameters, moments, variances, remainders = tensor_lists
    masters = [join_remainder(p, r) for p, r in zip(parameters, remainders, strict=True)]
    multi_tensor_adam(chunk_size, noop_flag, [gradients, masters, moments, variances], *args)
    for parameter, remainder, master in zip(parameters, remainders, masters, strict=True):
        split_remainder(master, parameter, remainder)


@torch.no_grad()
def join_remainder(parameter: torch.Tensor, remainder: torch.Tensor) -> torch.Tensor:
    """Returns the FP32 values of a BF16 parameter and its int16 remainder."""
    upper = parameter.detach().view(torch.int16).to(torch.int32) << 16
    return (upper + remainder).view(torch.float32)


@torch.no_grad()
def split_remainder(values: torch.Tensor, parameter: torch.Tensor, remainder: torch.Tensor) -> None:
    """Writes FP32 values into a BF16 parameter, rounded half up, and its int16 remainder."""
    bits = values.view(torch.int32)
    # The remainder in [-2^15, 2^15); without it the bits are a multiple of 2^16.
    signed = ((bits + 2**15) & 0xFFFF) - 2**15
    remainder.copy_(signed)
    parameter.detach().view(torch.int16).copy_((bits - signed) >> 16)


@rejects_bools
def multi_tensor_adam_fp8(
    chunk_size: int,
    noop_flag: torch.Tensor | None,
    tensor_lists: Sequence[Tensors],
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: bool | int,
    weight_decay: float,
    fp8_dtype: _C.DType,
) -> None:
    """``multi_tensor_adam`` with parameters that are FP8 codes, uint8, with one scale each.

    Lists: gradients, codes, first moments, second moments, master weights, scales, amaxes, inverse
    scales. The last three have one-element FP32 tensors: the scale is used unchanged, the amax
    becomes the maximum of itself and the step's, the inverse scale is written.
    """
    gradients, codes, moments, variances, masters, scales, amaxes, inverses = tensor_lists
    multi_tensor_adam(
        *(chunk_size, noop_flag, [gradients, masters, moments, variances]),
        *(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay),
    )
    dtype = TE_DType_To_Torch[fp8_dtype]
    largest = torch.finfo(dtype).max
    for code, master, scale, amax, inverse in zip(
        codes, masters, scales, amaxes, inverses, strict=True
    ):
        scaled = (master.float() * scale).clamp(-largest, largest)
        code.view(torch.uint8).copy_(scaled.to(dtype).view(torch.uint8))
        amax.copy_(torch.maximum(amax, master.abs().max().float()))
        inverse.copy_(scale.reciprocal())


# ------------------------------------------------------------------------------ SGD


@rejects_bools
def multi_tensor_sgd(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Sequence[Tensors],
    weight_decay: float,
    momentum: float,
    dampening: float,
    lr: float,
    nesterov: bool,
    first_run: bool,
    wd_after_momentum: bool,
    scale: float,
) -> None:
    """One step of SGD; nothing if ``noop_flag`` is not 0.

    Parameters
    ----------
    tensor_lists
        gradients, parameters, momenta and, optionally, copies that receive the rounded parameters
    first_run
        the momenta become the gradients, without dampening
    wd_after_momentum
        weight decay is added to the update instead of the gradient
    scale
        gradients are multiplied by it
    """
    if int(noop_flag.item()) != 0:
        return
    gradients, parameters, momenta, *copies = tensor_lists
    g = torch._foreach_mul(_in_fp32(gradients), scale)
    p, m = _in_fp32(parameters), _in_fp32(momenta)
    if weight_decay != 0 and not wd_after_momentum:
        torch._foreach_add_(g, p, alpha=weight_decay)
    if momentum != 0:
        if first_run:
            torch._foreach_copy_(m, g)
        else:
            torch._foreach_mul_(m, momentum)
            torch._foreach_add_(m, g, alpha=1 - dampening)
        g = torch._foreach_add(g, m, alpha=momentum) if nesterov else [each.clone() for each in m]
    if weight_decay != 0 and wd_after_momentum:
        torch._foreach_add_(g, p, alpha=weight_decay)
    torch._foreach_add_(p, g, alpha=-lr)
    _write(parameters, p)
    if momentum != 0:
        _write(momenta, m)
    if copies:
        _write(copies[0], p)


def refuse_sparse(owner: str, gradient: torch.Tensor) -> None:
    """Raises UsageError for a sparse gradient."""
    if gradient.is_sparse:
        raise _C.UsageError(
            f"{owner}: a gradient is sparse; expected dense ones: make embeddings without "
            "sparse=True, or use torch.optim.SparseAdam for them"
        )


def zero_gradients(
    optimizer: torch.optim.Optimizer, set_to_none: bool | None, attribute: str = "grad"
) -> None:
    """Clears ``attribute`` on all parameters: None, or zeros if ``set_to_none`` is False.

    None as ``set_to_none`` means the optimizer's ``set_grad_none``, or True if that is None.
    """
    if set_to_none is None:
        set_to_none = optimizer.set_grad_none is not False
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = getattr(parameter, attribute, None)
            if gradient is None:
                continue
            if set_to_none:
                setattr(parameter, attribute, None)
            else:
                gradient.detach().zero_()
