"""``fuse_wgrad_accumulation`` of graphed callables does not change the caller's ``main_grad``."""

import graphed_cases as cases
import pytest
import torch

import telens
import telens.pytorch as te
from telens.pytorch import graph_wgrads

# A warm-up that adds zeros, or NaNs of uninitialized samples, would change these values.
KEPT = torch.tensor([5.0, -0.0, float("nan"), float("inf")])


def make_fused(delay=False):
    torch.manual_seed(3)
    layer = te.Linear(
        cases.WIDTH,
        cases.WIDTH,
        fuse_wgrad_accumulation=True,
        delay_wgrad_compute=delay,
        device="cpu",
    )
    layer.weight.main_grad = torch.zeros(layer.weight.shape)
    return layer


def test_a_call_marks_that_it_added_as_a_backward_does(graphs):
    """Hooks that reduce ``main_grad`` test the mark, and wait for a gradient."""
    layer = make_fused()
    layer.weight.grad_added_to_main_grad = False
    te.make_graphed_callables(layer, cases.sample("cpu"))
    run(layer, delay=False)
    assert layer.weight.grad_added_to_main_grad is True
    assert torch.equal(layer.weight.grad, torch.zeros_like(layer.weight))


def run(layer, delay):
    x = torch.ones(cases.ROWS, cases.WIDTH, requires_grad=True)
    layer(x).sum().backward()
    if delay:
        layer.backward_dw()


@pytest.mark.parametrize("delay", [False, True])
def test_each_call_adds_to_it(graphs, delay):
    layer = make_fused(delay)
    te.make_graphed_callables(layer, cases.sample("cpu"))
    for calls in (1, 2):
        run(layer, delay)
        expected = torch.full(layer.weight.shape, float(calls * cases.ROWS))
        assert torch.equal(layer.weight.main_grad, expected)
    assert layer.weight.grad is None
    assert layer.bias.grad is not None


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("delay", [False, True])
def test_making_callables_leaves_it_as_it_was(graphs, delay, overwrite):
    layer = make_fused(delay)
    layer.weight.overwrite_main_grad = overwrite
    layer.weight.grad_added_to_main_grad = False
    layer.weight.main_grad.copy_(KEPT.repeat(layer.weight.numel() // 4).view_as(layer.weight))
    before = layer.weight.main_grad.clone()
    sample = (torch.full((cases.ROWS, cases.WIDTH), float("nan"), requires_grad=True),)
    te.make_graphed_callables(layer, sample)
    cases.assert_same([layer.weight.main_grad], [before])
    assert layer.weight.grad_added_to_main_grad is False


@pytest.mark.parametrize(("frozen", "training"), [(False, True), (True, True), (False, False)])
def test_warm_up_copies_only_main_grads_that_it_changes(frozen, training, monkeypatch):
    layer = make_fused().train(training)
    layer.weight.requires_grad_(not frozen)
    copied = []
    monkeypatch.setattr(graph_wgrads, "get_main_grad", copied.append)
    with graph_wgrads.WeightGradients(layer).untouched_main_grads():
        pass
    assert len(copied) == (training and not frozen)


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize("change", ["buffer", "dtype", "overwrite"])
def test_another_one_after_the_capture_is_an_error_or_is_filled(graphs, delay, change):
    layer = make_fused(delay)
    te.make_graphed_callables(layer, cases.sample("cpu"))
    if change == "overwrite":
        layer.weight.overwrite_main_grad = True
    else:
        dtype = torch.bfloat16 if change == "dtype" else torch.float32
        layer.weight.main_grad = torch.zeros(layer.weight.shape, dtype=dtype)
    if graphs is None:
        run(layer, delay)
        assert torch.equal(
            layer.weight.main_grad, torch.full_like(layer.weight.main_grad, cases.ROWS)
        )
    else:
        with pytest.raises(telens.UsageError, match=r"main_grad .* is another than when it was"):
            run(layer, delay)
