"""If no gradients are needed, a weight has one quantized copy, not two."""

import pytest
import torch

import telens
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, MXFP8BlockScaling

SIZE = 2048  # a copy of a weight has 4 MiB of codes and a thirty-second of it in scales
COPY = SIZE * SIZE * (1 + 1 / 32)
RECIPE = MXFP8BlockScaling()


def kept_bytes(function) -> float:
    """The bytes that a call has allocated and not freed, as torch counts them."""
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    return sum(each.self_cpu_memory_usage for each in profile.key_averages())


def layer_without_graph():
    torch.manual_seed(1)
    return te.Linear(SIZE, SIZE, bias=False, device="cpu", params_dtype=torch.bfloat16)


def call(layer, x, first):
    with te.autocast(recipe=RECIPE):
        return layer(x, is_first_microbatch=first)


@pytest.mark.parametrize("how", ["no_grad", "inference_mode", "requires_grad"])
def test_cached_inference_weight_lacks_columnwise_copy(how):
    layer, x = layer_without_graph(), torch.randn(32, SIZE, dtype=torch.bfloat16)
    if how == "requires_grad":
        layer.requires_grad_(False)
        context = torch.enable_grad()
    else:
        context = getattr(torch, how)()
    with context:
        used = kept_bytes(lambda: call(layer, x, True))
    assert COPY * 0.99 < used < COPY * 1.1


def test_cached_training_weight_keeps_both_copies():
    layer, x = layer_without_graph(), torch.randn(32, SIZE, dtype=torch.bfloat16)
    with torch.no_grad():
        call(layer, x, True)
    x.requires_grad_()
    trained = call(layer, x, False)  # makes both, since dgrad needs the other
    trained.sum().backward()
    expected = x.grad.clone()
    x.grad = None
    call(layer, x, None).sum().backward()
    assert torch.equal(x.grad, expected)
    with torch.no_grad():
        assert torch.equal(call(layer, x, False), trained)
    x.grad = None
    call(layer, x, False).sum().backward()
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_stored_weight_without_gradients_lacks_columnwise_copy(context):
    with te.fp8_model_init(recipe=RECIPE), context():
        layer = layer_without_graph()
    assert layer.weight._rowwise_data is not None
    assert layer.weight._columnwise_data is None
    with te.fp8_model_init(recipe=RECIPE):
        assert layer_without_graph().weight._columnwise_data is not None


def test_per_tensor_stored_weight_can_be_trained_later():
    def make(context):
        torch.manual_seed(2)
        with te.fp8_model_init(), context:
            return te.Linear(32, 32, device="cpu")

    grads = []
    for layer in (make(torch.no_grad()), make(torch.enable_grad())):
        x = torch.ones(16, 32, requires_grad=True)
        with te.autocast(recipe=DelayedScaling()):
            out = layer(x)
        out.square().sum().backward()
        grads.append((out, x.grad))
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


def test_block_stored_weight_without_gradients_rejects_training():
    with te.fp8_model_init(recipe=RECIPE), torch.no_grad():
        layer = te.Linear(64, 64, device="cpu", name="fc1")
    x = torch.ones(32, 64, requires_grad=True)
    with te.autocast(recipe=RECIPE), pytest.raises(telens.UsageError, match=r"fc1: .*made without"):
        layer(x)
