"""Compares layers of telens.paddle and telens.pytorch that have the same weights."""

import numpy as np
import paddle
import torch

from telens.paddle.core_module import TENSORS

# Names in telens.pytorch of what telens.paddle names differently.
TORCH_NAMES = {"ln_weight": "layer_norm_weight", "ln_bias": "layer_norm_bias"}


def to_torch(tensor):
    """A copy in torch."""
    return TENSORS.view(tensor.detach()).clone()


def bits(tensor):
    """The bytes of a tensor of either framework."""
    if isinstance(tensor, paddle.Tensor):
        tensor = to_torch(tensor)
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def copy_weights(source, target):
    """Copies parameters from a layer of telens.paddle to the equivalent module of
    telens.pytorch.
    """
    values = {}
    for name, parameter in source.named_parameters():
        *path, own = name.split(".")
        values[".".join([*path, TORCH_NAMES.get(own, own)])] = to_torch(parameter)
    missing, unexpected = target.load_state_dict(values, strict=False)
    assert not unexpected
    assert all(name.endswith("_extra_state") for name in missing), missing


def gradients(layer):
    """Returns the gradients of a layer's parameters by telens.pytorch's names, as torch tensors."""
    found = {}
    for name, parameter in layer.named_parameters():
        *path, own = name.split(".")
        gradient = parameter.grad
        if isinstance(gradient, paddle.Tensor):
            gradient = to_torch(gradient)
        found[".".join([*path, TORCH_NAMES.get(own, own)])] = gradient
    return found


def randoms(*shape, seed=0, dtype="float32"):
    """Standard normal numbers, for which gradients are computed."""
    values = np.random.default_rng(seed).standard_normal(shape).astype("float32")
    tensor = paddle.to_tensor(values).astype(dtype)
    tensor.stop_gradient = False
    return tensor


def run_both(layer, module, inputs, in_fp8=None, torch_calls=None, **arguments):
    """Runs forward and backward of both; returns (outputs, input gradients, parameter gradients) of
    each.

    ``in_fp8``: (context of Paddle, context of PyTorch). Every output's gradient is what randoms
    give.
    """
    results = []
    for framework in ("paddle", "torch"):
        called = layer if framework == "paddle" else module
        given = []
        for tensor in inputs:
            each = tensor.detach() if framework == "paddle" else to_torch(tensor)
            if framework == "paddle":
                each.stop_gradient = tensor.stop_gradient
            elif not tensor.stop_gradient:
                each.requires_grad_(True)
            given.append(each)
        more = arguments if framework == "paddle" else (torch_calls or {})
        if in_fp8 is None:
            out = called(*given, **more)
        else:
            with in_fp8[0 if framework == "paddle" else 1]():
                out = called(*given, **more)
        outputs = out if isinstance(out, tuple | list) else (out,)
        incoming = [
            randoms(*each.shape, seed=9 + i).astype(str(each.dtype).split(".")[-1])
            for i, each in enumerate(outputs)
        ]
        if framework == "paddle":
            paddle.autograd.backward(list(outputs), incoming)
        else:
            torch.autograd.backward(list(outputs), [to_torch(each) for each in incoming])
        results.append((outputs, [each.grad for each in given], gradients(called)))
    return results


def assert_same_bits(ours, theirs):
    """Compares the two results of run_both."""
    for mine, other in zip(ours[0], theirs[0], strict=True):
        assert bits(mine) == bits(other)
    for mine, other in zip(ours[1], theirs[1], strict=True):
        assert (mine is None) == (other is None)
        assert mine is None or bits(mine) == bits(other)
    assert ours[2].keys() == theirs[2].keys()
    for name, gradient in ours[2].items():
        assert bits(gradient) == bits(theirs[2][name]), name
