"""C++ parents call children that are hooked, patched or replaced in Python."""

import gc
import weakref

import pytest
import torch
from torch.nn.utils import parametrize, prune

import telens
import telens.pytorch as te


@pytest.fixture
def layer() -> te.TransformerLayer:
    torch.manual_seed(1)
    return te.TransformerLayer(32, 64, 2, hidden_dropout=0, attention_dropout=0)


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randn(16, 2, 32, requires_grad=True)


def test_forward_hooks_on_inner_modules_see_inputs_and_change_outputs(layer, x):
    plain = layer(x)
    seen = []
    handle = layer.self_attention.proj.register_forward_hook(
        lambda module, args, out: seen.append(args[0].shape) or out * 0
    )
    assert not torch.equal(layer(x), plain)
    assert seen == [torch.Size([16, 2, 32])]
    handle.remove()
    assert torch.equal(layer(x), plain)
    assert len(seen) == 1


def test_forward_pre_hooks_with_kwargs_on_inner_modules_are_called(layer, x):
    calls = []
    layer.layernorm_mlp.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append((len(args), kwargs)), with_kwargs=True
    )
    layer(x)
    layer(x, is_first_microbatch=True)
    assert calls == [(1, {}), (1, {"is_first_microbatch": True})]


def test_full_backward_hooks_on_inner_modules_see_gradients(layer, x):
    gradients = []
    layer.self_attention.proj.register_full_backward_hook(
        lambda module, grad_in, grad_out: gradients.append((grad_in[0].shape, grad_out[0].shape))
    )
    layer(x).sum().backward()
    assert gradients == [(torch.Size([16, 2, 32]), torch.Size([16, 2, 32]))]


def test_global_hooks_see_every_module_inside(layer, x):
    seen = []
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, out: seen.append(type(module).__name__)
    )
    try:
        layer(x)
    finally:
        handle.remove()
    assert {"Linear", "LayerNormLinear", "LayerNormMLP", "MultiheadAttention"} <= set(seen)
    seen.clear()
    layer(x)
    assert seen == []


def test_a_patched_forward_of_a_child_is_called(layer, x):
    proj = layer.self_attention.proj
    plain, original, calls = layer(x), proj.forward, []

    def patched(inp, **kwargs):
        calls.append(inp.shape)
        return original(inp, **kwargs)

    proj.forward = patched
    assert torch.equal(layer(x), plain)
    assert len(calls) == 1
    del proj.forward
    layer(x)
    assert len(calls) == 1


def test_a_subclass_in_python_may_override_forward(x):
    class Doubled(te.Linear):
        def __init__(self):
            super().__init__(32, 32)

        def forward(self, inp):
            return super().forward(inp) * 2

    module = Doubled()
    expected = torch.nn.functional.linear(x, module.weight, module.bias) * 2
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)


def test_an_instance_that_becomes_a_subclass_is_called(layer, x):
    class Silent(te.Linear):
        def forward(self, inp, **kwargs):
            return super().forward(inp, **kwargs) * 0

    plain = layer(x)
    layer.self_attention.proj.__class__ = Silent
    assert not torch.equal(layer(x), plain)


def test_a_lora_child_is_called_and_trains(layer, x):
    class Lora(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = torch.nn.Linear(32, 4, bias=False)
            self.up = torch.nn.Linear(4, 32, bias=False)

        def forward(self, inp, **kwargs):
            return self.base(inp, **kwargs) + self.up(self.down(inp))

    plain = layer(x)
    lora = Lora(layer.self_attention.proj)
    torch.nn.init.zeros_(lora.up.weight)
    layer.self_attention.proj = lora
    assert torch.equal(layer(x), plain)
    layer(x).sum().backward()
    assert lora.up.weight.grad.abs().sum() > 0
    assert lora.base.weight.grad is None


def test_replaced_child_is_released(layer, x):
    replacement = torch.nn.Linear(32, 32)
    layer.self_attention.proj = replacement
    layer(x)
    gone = weakref.ref(replacement)
    layer.self_attention.proj = te.Linear(32, 32)
    del replacement
    layer(x)
    gc.collect()
    assert gone() is None


def test_hooked_module_is_released():
    layer = te.TransformerLayer(32, 64, 2)
    layer.self_attention.proj.register_forward_hook(lambda *_: None)
    layer(torch.randn(16, 2, 32))
    gone = weakref.ref(layer.self_attention.proj)
    del layer
    gc.collect()
    assert gone() is None


def test_a_removed_child_is_an_error_that_names_it(layer, x):
    layer.self_attention.proj = None
    with pytest.raises(telens.UsageError, match="child 'proj' was removed"):
        layer(x)


def test_pruning_the_weight_of_a_child_takes_effect(layer, x):
    plain = layer(x)
    prune.random_unstructured(layer.self_attention.proj, "weight", amount=0.5)
    pruned = layer(x)
    assert not torch.equal(pruned, plain)
    pruned.sum().backward()
    assert layer.self_attention.proj.weight_orig.grad is not None
    prune.remove(layer.self_attention.proj, "weight")
    torch.testing.assert_close(layer(x), pruned)


def test_a_parametrized_weight_is_computed_for_each_forward(layer, x):
    class Halved(torch.nn.Module):
        def forward(self, weight):
            return weight / 2

    proj = layer.self_attention.proj
    original = proj.weight.detach().clone()
    parametrize.register_parametrization(proj, "weight", Halved())
    halved = layer(x)
    halved.sum().backward()
    assert proj.parametrizations.weight.original.grad is not None
    parametrize.remove_parametrizations(proj, "weight", leave_parametrized=False)
    with torch.no_grad():
        proj.weight.copy_(original / 2)
    torch.testing.assert_close(layer(x), halved)


def test_a_child_that_returns_no_tensor_is_an_error(layer, x):
    layer.self_attention.proj.forward = lambda inp, **kwargs: "nothing"
    with pytest.raises(telens.UsageError, match="must return a tensor"):
        layer(x)


def test_an_exception_in_a_child_passes_through(layer, x):
    class Custom(Exception):
        pass

    def failing(*args, **kwargs):
        raise Custom("from the child")

    layer.self_attention.proj.forward = failing
    with pytest.raises(Custom, match="from the child"):
        layer(x)
