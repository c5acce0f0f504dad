"""Quantizers whose class a user writes in Python."""

import gc
import threading
import weakref

import pytest
import torch

import telens
import telens.pytorch as te
from telens.common.recipe import CustomRecipe, Float8CurrentScaling, MXFP8BlockScaling

E4M3, E5M2 = te.DType.kFloat8E4M3, te.DType.kFloat8E5M2


class Clipped(te.Float8CurrentScalingQuantizer):
    """Clips a tensor to a multiple of its root mean square, so that outliers do not enlarge its
    range.
    """

    def __init__(self, dtype, multiple):
        super().__init__(dtype)
        self.multiple = multiple
        self.asked = []

    def quantize(self, tensor):
        self.asked.append((self.rowwise_usage, self.columnwise_usage, torch.is_grad_enabled()))
        limit = self.multiple * tensor.float().square().mean().sqrt().item()
        return super().quantize(tensor.clamp(-limit, limit))


def clipped(role):
    return Clipped(E5M2 if role.tensor_type.startswith("grad") else E4M3, 2.0)


def a_layer():
    torch.manual_seed(0)
    layer = te.Linear(64, 64, bias=False, params_dtype=torch.bfloat16)
    x = torch.randn(32, 64, dtype=torch.bfloat16)
    x[0, 0] = 100
    return layer, x.requires_grad_()


def train(recipe, layer=None, x=None):
    if layer is None:
        layer, x = a_layer()
    with te.autocast(enabled=True, recipe=recipe):
        out = layer(x)
    out.backward(torch.ones_like(out))
    return out.detach(), x.grad, layer.weight.grad


def test_layer_multiplies_results_of_the_python_class():
    layer, x = a_layer()
    out, dgrad, wgrad = train(CustomRecipe(clipped), layer, x)
    a, b = (clipped_values(each.detach(), E4M3) for each in (x, layer.weight))
    gradient = clipped_values(torch.ones_like(out), E5M2)
    for found, expected in ((out, a @ b.T), (dgrad, gradient @ b), (wgrad, gradient.T @ a)):
        torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=1e-6)
    assert not torch.equal(out, train(Float8CurrentScaling())[0])


def clipped_values(x, dtype):
    limit = 2 * x.float().square().mean().sqrt().item()
    plain = te.Float8CurrentScalingQuantizer(dtype)
    return plain(x.clamp(-limit, limit)).dequantize(dtype=torch.float32).double()


def test_a_class_that_adds_nothing_changes_no_bit():
    class Plain(te.MXFP8Quantizer):
        def quantize(self, tensor):
            return super().quantize(tensor)

    recipe = CustomRecipe(lambda role: Plain(E4M3))
    for found, expected in zip(train(recipe), train(MXFP8BlockScaling()), strict=True):
        assert torch.equal(found, expected)


def test_quantize_is_called_for_needed_orientations_without_grad():
    made = {}

    def factory(role):
        return made.setdefault(role.tensor_type, clipped(role))

    train(CustomRecipe(factory))
    for tensor in ("input", "weight", "grad_output"):
        assert made[tensor].asked == [(True, True, False)], tensor
    layer, x = a_layer()
    with te.autocast(enabled=True, recipe=CustomRecipe(factory)), torch.no_grad():
        layer(x)
    assert made["input"].asked[-1] == (True, False, False)


def test_an_object_that_is_called_runs_its_own_quantize():
    quantizer = Clipped(E4M3, 1.0)
    assert quantizer(torch.tensor([[1.0, 100.0]])).dequantize().max() < 75
    assert len(quantizer.asked) == 1


def test_a_weight_that_is_kept_is_made_once_for_two_micro_batches():
    made = {}
    recipe = CustomRecipe(lambda role: made.setdefault(role.tensor_type, clipped(role)))
    layer, x = a_layer()
    with te.autocast(enabled=True, recipe=recipe):
        first = layer(x, is_first_microbatch=True)
        second = layer(x, is_first_microbatch=False)
    assert torch.equal(first, second)
    assert len(made["weight"].asked) == 1
    assert len(made["input"].asked) == 2


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda self, x: x, "Wrong.quantize returned Tensor; expected a QuantizedTensor"),
        (lambda self, x: None, "Wrong.quantize returned NoneType; expected a QuantizedTensor"),
        (
            lambda self, x: te.MXFP8Quantizer(E4M3)(x),
            "in E4M3, scaling MXFP8; expected E4M3, scaling",
        ),
        (
            lambda self, x: te.Float8CurrentScalingQuantizer(E5M2)(x),
            "in E5M2, scaling tensor; expected E4M3, scaling tensor",
        ),
        (
            lambda self, x: te.Float8CurrentScalingQuantizer(E4M3)(x[:16]),
            r"of shape \[16, 64\] for one of shape \[32, 64\]",
        ),
        (
            lambda self, x: te.Float8CurrentScalingQuantizer(E4M3, columnwise=False)(x),
            "without its columnwise orientation, which columnwise_usage asked for",
        ),
    ],
)
def test_invalid_results_are_rejected(returned, message):
    class Wrong(te.Float8CurrentScalingQuantizer):
        quantize = returned

    with pytest.raises(telens.Error, match=message):
        train(CustomRecipe(lambda role: Wrong(E4M3)))


def test_an_exception_of_the_class_reaches_the_caller():
    class Broken(te.Float8CurrentScalingQuantizer):
        def quantize(self, tensor):
            raise KeyError("no table for this tensor")

    with pytest.raises(KeyError, match="no table for this tensor"):
        train(CustomRecipe(lambda role: Broken(E4M3)))

    def only_gradients(role):
        return Broken(E4M3) if role.tensor_type == "grad_output" else clipped(role)

    with pytest.raises((KeyError, RuntimeError), match="no table for this tensor"):
        train(CustomRecipe(only_gradients))


def test_threads_that_share_an_object_take_turns():
    shared = Clipped(E4M3, 2.0)
    recipe = CustomRecipe(lambda role: shared)
    expected = train(recipe)
    found = []

    def run():
        for _ in range(5):
            found.append(train(recipe, *a_layer_of_its_own()))

    weight = a_layer()[0].weight.detach()

    def a_layer_of_its_own():
        layer = te.Linear(64, 64, bias=False, params_dtype=torch.bfloat16)
        layer.weight.data.copy_(weight)
        x = torch.empty(32, 64, dtype=torch.bfloat16).copy_(sample)
        return layer, x.requires_grad_()

    sample = a_layer()[1].detach()
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert len(found) == 20
    for each in found:
        for got, want in zip(each, expected, strict=True):
            assert torch.equal(got, want)


def test_an_object_goes_with_the_layer_and_the_recipe():
    held = [Clipped(E4M3, 2.0)]
    recipe = CustomRecipe(lambda role: held[0])
    layer, x = a_layer()
    train(recipe, layer, x)
    assert layer.quantizers["scaling_fwd"][0] is held[0]
    alive = weakref.ref(held.pop())
    del recipe
    gc.collect()
    assert alive() is not None
    del layer, x
    gc.collect()
    assert alive() is None
