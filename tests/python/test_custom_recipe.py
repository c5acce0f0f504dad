"""CustomRecipe: a factory of the user is asked for each tensor's quantizer."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from recipe_helpers import forward

import telens
import telens.pytorch as te
from telens.common.recipe import CustomRecipe, IdentityQuantizer, MXFP8BlockScaling

E4M3 = te.DType.kFloat8E4M3


def test_a_custom_recipe_is_asked_for_every_tensor_and_obeyed():
    asked = []

    def factory(role):
        asked.append(role)
        return te.MXFP8Quantizer(E4M3)

    torch.manual_seed(0)
    layer = te.LayerNormMLP(64, 64, device="cpu", name="mlp")
    x = torch.randn(32, 64)
    with te.autocast(recipe=MXFP8BlockScaling()):
        expected = layer(x)
    with te.autocast(recipe=CustomRecipe(qfactory=factory)):
        assert torch.equal(layer(x), expected)
        layer(x)
    assert {role.name for role in asked} == {"mlp.fc1", "mlp.fc2"}
    types = ["input", "weight", "output", "grad_output", "grad_input"]
    assert sorted(role.tensor_type for role in asked) == sorted(2 * types)
    assert {role.module_type for role in asked} == {"linear"}


def test_custom_recipe_distinguishes_grouped_gemms():
    asked = []

    def factory(role):
        asked.append(role)
        return te.MXFP8Quantizer(E4M3)

    layer = te.GroupedLinear(2, 64, 64, device="cpu", name="experts")
    with te.autocast(recipe=CustomRecipe(qfactory=factory)):
        layer(torch.randn(64, 64), [32, 32])
    roles = {(role.module_type, role.name) for role in asked}
    assert roles == {("grouped_linear", "experts.gemm_0"), ("grouped_linear", "experts.gemm_1")}


def test_a_custom_recipe_leaves_gemms_in_high_precision():
    def only_weights_and_inputs(role):
        if role.tensor_type in ("grad_output", "grad_input"):
            return IdentityQuantizer()
        return te.Float8BlockQuantizer(
            E4M3, block_scaling_dim=2 if role.tensor_type == "weight" else 1
        )

    torch.manual_seed(0)
    layer = te.Linear(64, 64, bias=False, device="cpu")
    x = torch.randn(32, 64, requires_grad=True)
    with te.autocast(recipe=CustomRecipe(qfactory=only_weights_and_inputs)):
        y = layer(x)
    assert not torch.equal(y, x @ layer.weight.t())
    grad = torch.randn_like(y)
    y.backward(grad)
    assert torch.equal(x.grad, grad @ layer.weight)
    assert torch.equal(layer.weight.grad, grad.t() @ x)


@pytest.mark.parametrize("answer", [None, "mxfp8"])
def test_a_custom_recipe_that_returns_no_quantizer_is_an_error(answer):
    recipe = CustomRecipe(qfactory=lambda role: answer)
    with te.autocast(recipe=recipe), pytest.raises(telens.UsageError, match="IdentityQuantizer"):
        te.Linear(64, 64, device="cpu")(torch.randn(32, 64))


def test_a_custom_recipe_that_fails_halfway_leaves_a_layer_as_it_was():
    def fails_at_outputs(role):
        if role.tensor_type in ("input", "weight"):
            return te.NVFP4Quantizer()
        raise ValueError("no such role")

    torch.manual_seed(0)
    layer = te.Linear(64, 64, device="cpu")
    x = torch.randn(32, 64)
    known = MXFP8BlockScaling()
    with te.autocast(recipe=known):
        expected = layer(x)
    custom = CustomRecipe(qfactory=fails_at_outputs)
    with te.autocast(recipe=custom), pytest.raises(Exception, match="no such role"):
        layer(x)
    with te.autocast(recipe=known):
        assert torch.equal(layer(x), expected)


def test_operands_that_no_gemm_multiplies_are_named():
    def mixed(role):
        if role.tensor_type == "weight":
            return te.MXFP8Quantizer(E4M3)
        return te.Float8BlockQuantizer(E4M3, block_scaling_dim=1)

    layer = te.Linear(64, 64, device="cpu", name="odd")
    with (
        te.autocast(recipe=CustomRecipe(qfactory=mixed)),
        pytest.raises(telens.UsageError, match="odd: fprop cannot multiply activation"),
    ):
        layer(torch.randn(32, 64))

    def one_rotated(role):
        return te.NVFP4Quantizer(with_rht=role.tensor_type == "input")

    x = torch.randn(32, 64)
    with te.autocast(recipe=CustomRecipe(qfactory=one_rotated)):
        y = layer(x)
    with pytest.raises(RuntimeError, match="the same transform for both"):
        y.sum().backward()


def test_a_custom_recipe_takes_an_alignment_without_effect():
    made = CustomRecipe(lambda role: te.MXFP8Quantizer(E4M3), quantization_alignment=32)
    assert torch.equal(forward(made), forward(MXFP8BlockScaling()))
    with pytest.raises(telens.UsageError, match="quantization_alignment must be at least 1, not 0"):
        CustomRecipe(lambda role: None, quantization_alignment=0)


class Factory:
    """Makes MXFP8 quantizers. All objects are equal, so they cannot be hashed."""

    def __init__(self):
        self.calls = 0

    def __eq__(self, other):
        return True

    def __call__(self, role):
        self.calls += 1
        return te.MXFP8Quantizer(E4M3)


def test_a_custom_recipe_takes_a_factory_that_cannot_be_hashed():
    first, second = Factory(), Factory()
    expected = forward(MXFP8BlockScaling())
    recipe = CustomRecipe(qfactory=first)
    assert torch.equal(forward(recipe), expected)
    recipe.qfactory = second
    assert torch.equal(forward(recipe), expected)
    assert (first.calls, second.calls) == (5, 5)


def test_a_custom_recipe_lets_its_factory_go():
    factory = Factory()
    recipe = CustomRecipe(qfactory=factory)
    forward(recipe)
    alive = weakref.ref(factory)
    del factory, recipe
    gc.collect()
    assert alive() is None


def test_a_custom_recipe_is_copied_and_pickled_after_use():
    recipe = CustomRecipe(qfactory=only_mxfp8)
    expected = forward(recipe)
    for other in (copy.deepcopy(recipe), pickle.loads(pickle.dumps(recipe))):
        assert other == recipe
        assert torch.equal(forward(other), expected)


def only_mxfp8(role):
    return te.MXFP8Quantizer(E4M3)


def test_a_quantizer_that_a_factory_shares_stays_as_it_was():
    shared = te.MXFP8Quantizer(E4M3)
    recipe = CustomRecipe(qfactory=lambda role: shared)
    layer = te.Linear(64, 64, device="cpu")
    x = torch.randn(32, 64)
    with te.autocast(recipe=recipe), torch.no_grad():
        layer(x)  # makes rowwise copies alone
    assert (shared.rowwise_usage, shared.columnwise_usage) == (True, True)
    assert torch.equal(forward(recipe), forward(MXFP8BlockScaling()))


def test_shared_quantizer_still_collects_amax():
    amax = torch.zeros(1)
    shared = te.Float8Quantizer(torch.ones(1), amax, E4M3)
    forward(CustomRecipe(qfactory=lambda role: shared))
    assert amax.item() > 0


def test_fp8_output_is_quantized_rowwise():
    def factory(role):
        return te.MXFP8Quantizer(E4M3, rowwise=role.tensor_type != "output")

    torch.manual_seed(0)
    layer = te.Linear(64, 64, bias=False, device="cpu", params_dtype=torch.bfloat16)
    x = torch.randn(32, 64, dtype=torch.bfloat16)
    x[::2] *= 2.0**-20  # a scale for 32 rows would leave nothing of these
    with te.autocast(recipe=MXFP8BlockScaling()):
        expected = te.MXFP8Quantizer(E4M3)(layer(x).detach()).dequantize()
    with te.autocast(recipe=CustomRecipe(qfactory=factory)):
        assert torch.equal(layer(x, fp8_output=True), expected)
