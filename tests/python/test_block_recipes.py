"""Training with block recipes and custom ones, and the tensors and quantizers that scripts use."""

import copy
import io

import pytest
import torch

import telens
import telens.pytorch as te
from telens.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Format,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

E4M3, E5M2 = te.DType.kFloat8E4M3, te.DType.kFloat8E5M2

RECIPES = {
    "mxfp8": MXFP8BlockScaling(),
    "mxfp8 hybrid": MXFP8BlockScaling(fp8_format=Format.HYBRID, enable_2d_quantization=True),
    "block": Float8BlockScaling(),
    "block FP32": Float8BlockScaling(use_f32_scales=True, fp8_format=Format.HYBRID),
    # Without stochastic rounding, which a reference cannot repeat.
    "nvfp4": NVFP4BlockScaling(disable_stochastic_rounding=True),
    "nvfp4 plain": NVFP4BlockScaling(
        disable_rht=True, disable_stochastic_rounding=True, disable_2d_quantization=True
    ),
}
TENSOR_CLASSES = {
    "mxfp8": te.MXFP8Tensor,
    "block": te.Float8BlockwiseQTensor,
    "nvfp4": te.NVFP4Tensor,
}


def quantizer_of(recipe, role: str):
    """The quantizer that the documentation of the recipe promises for a tensor."""
    if isinstance(recipe, MXFP8BlockScaling):
        hybrid = recipe.fp8_format is Format.HYBRID and role == "gradient"
        square = recipe.enable_2d_quantization and role == "weight"
        return te.MXFP8Quantizer(E5M2 if hybrid else E4M3, with_2d_quantization=square)
    if isinstance(recipe, Float8BlockScaling):
        hybrid = recipe.fp8_format is Format.HYBRID and role == "gradient"
        return te.Float8BlockQuantizer(
            E5M2 if hybrid else E4M3,
            force_pow_2_scales=not recipe.use_f32_scales,
            block_scaling_dim=2 if role == "weight" else 1,
        )
    return te.NVFP4Quantizer(
        with_rht=role != "weight" and not recipe.disable_rht,
        with_2d_quantization=role == "weight" and not recipe.disable_2d_quantization,
    )


def columnwise(quantized: torch.Tensor) -> torch.Tensor:
    """Returns the values of the columnwise copy, in the orientation of the tensor."""
    copy_ = quantized.detach().clone()
    copy_.update_usage(rowwise_usage=False)
    return copy_.dequantize(torch.float64)


class QuantizedProduct(torch.autograd.Function):
    """x @ w.t() and its gradients in FP64, with the values that the recipe's quantizers give."""

    @staticmethod
    def forward(context, x, weight, recipe):
        activation = quantizer_of(recipe, "activation")(x)
        quantized = quantizer_of(recipe, "weight")(weight)
        context.saved = columnwise(activation), columnwise(quantized), recipe
        return (activation.dequantize(torch.float64) @ quantized.dequantize(torch.float64).t()).to(
            x.dtype
        )

    @staticmethod
    def backward(context, grad):
        activation, weight, recipe = context.saved
        gradient = quantizer_of(recipe, "gradient")(grad)
        dgrad = gradient.dequantize(torch.float64) @ weight
        wgrad = columnwise(gradient).t() @ activation
        return dgrad.to(grad.dtype), wgrad.to(grad.dtype), None


def accumulation_bound(a: torch.Tensor, b: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The bound for a product that is accumulated in FP32 and rounded once, compared with FP64."""
    terms = a.shape[1]
    rounding = {torch.bfloat16: 2**-8, torch.float32: 2**-24}[result.dtype]
    sums = a.double().abs() @ b.double().abs()
    return terms * 2**-23 * sums + 2 * rounding * result.double().abs()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", RECIPES)
def test_a_linear_layer_multiplies_the_quantized_values(name, dtype):
    recipe = RECIPES[name]
    torch.manual_seed(0)
    layer = te.Linear(160, 96, bias=False, params_dtype=dtype, device="cpu")
    x = torch.randn(64, 160, dtype=dtype, requires_grad=True)
    grad = torch.randn(64, 96, dtype=dtype)
    with te.autocast(recipe=recipe):
        y = layer(x)
    y.backward(grad)

    activation = quantizer_of(recipe, "activation")(x.detach())
    weight = quantizer_of(recipe, "weight")(layer.weight.detach())
    gradient = quantizer_of(recipe, "gradient")(grad)

    def expect(found, a, b, slack=0.0):
        difference = (found.double() - a @ b).abs()
        assert (difference <= accumulation_bound(a, b, found) + slack).all()
        assert difference.max() < a.abs().mean() * b.abs().mean() * a.shape[1]

    def values(quantized):
        return quantized.dequantize(torch.float64) if dtype == torch.float32 else exact(quantized)

    expect(y, values(activation), values(weight).t())
    expect(x.grad, values(gradient), column_values(weight, dtype))
    if isinstance(recipe, NVFP4BlockScaling) and not recipe.disable_rht:
        # The transform cancels in the sum; dequantizing undoes it for each tensor.
        expected = column_values(gradient, dtype).t() @ column_values(activation, dtype)
        error = (layer.weight.grad.double() - expected).norm() / expected.norm()
        assert error < 2**-7
    else:
        expect(
            layer.weight.grad, column_values(gradient, dtype).t(), column_values(activation, dtype)
        )


def exact(quantized: torch.Tensor) -> torch.Tensor:
    """Values that are not rounded to the tensor's dtype."""
    storage = quantized._storage
    codes = storage.rowwise_data
    return torch.ops.telens.dequantize_blocks(
        codes,
        storage.rowwise_scale_inv,
        storage.rowwise_tensor_scale,
        storage.fp8_dtype.value,
        storage.mode.value,
        torch.float32,
    ).double()


def column_values(quantized: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    storage = quantized._storage
    if dtype == torch.float32 or storage.blocks[4] is not None:
        return columnwise(quantized)
    return (
        torch.ops.telens.dequantize_blocks(
            storage.columnwise_data,
            storage.columnwise_scale_inv,
            storage.columnwise_tensor_scale,
            storage.fp8_dtype.value,
            storage.mode.value,
            torch.float32,
        )
        .double()
        .t()
    )


def replace_products(module: torch.nn.Module, recipe) -> torch.nn.Module:
    """A LayerNormMLP in plain torch with the products of the reference."""

    class Reference(torch.nn.Module):
        def forward(self, x):
            normal = torch.nn.functional.layer_norm(
                x, x.shape[-1:], module.layer_norm_weight, module.layer_norm_bias
            )
            hidden = QuantizedProduct.apply(normal, module.fc1_weight, recipe) + module.fc1_bias
            active = torch.nn.functional.gelu(hidden, approximate="tanh")
            return QuantizedProduct.apply(active, module.fc2_weight, recipe) + module.fc2_bias

    return Reference()


@pytest.mark.parametrize("name", RECIPES)
def test_a_layer_norm_mlp_agrees_with_a_dequantized_reference(name):
    torch.manual_seed(0)
    module = te.LayerNormMLP(64, 128, params_dtype=torch.float32, device="cpu")
    x = torch.randn(96, 64, requires_grad=True)
    with te.autocast(recipe=RECIPES[name]):
        y = module(x)
    y.square().mean().backward()
    found = {key: value.grad.clone() for key, value in module.named_parameters()}
    found["x"] = x.grad.clone()
    module.zero_grad()
    x.grad = None
    reference = replace_products(module, RECIPES[name])(x)
    reference.square().mean().backward()
    expected = {key: value.grad for key, value in module.named_parameters()} | {"x": x.grad}
    # FP32 sums in another order sometimes round a value of the next layer to the neighboring code:
    # a step of 1/8 (FP8) or 1/2 (FP4) of one element in thousands.
    largest = 0.02 if "nvfp4" in name else 0.005
    assert (y - reference).norm() / reference.norm() < largest
    for key, gradient in expected.items():
        assert (found[key] - gradient).norm() / gradient.norm() < largest, key


@pytest.mark.parametrize("name", RECIPES)
def test_a_transformer_layer_learns(name):
    torch.manual_seed(0)
    layer = te.TransformerLayer(64, 128, 2, hidden_dropout=0, attention_dropout=0, device="cpu")
    x = torch.randn(32, 2, 64)
    target = torch.randn(32, 2, 64) * 0.1 + x
    optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-3)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        with te.autocast(recipe=RECIPES[name]):
            loss = (layer(x) - target).square().mean()
        loss.backward()
        assert all(p.grad.isfinite().all() for p in layer.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("name", ["mxfp8", "block", "nvfp4"])
def test_weights_are_stored_in_the_recipes_own_format(name):
    recipe = RECIPES[name]
    torch.manual_seed(0)
    with te.fp8_model_init(recipe=recipe, preserve_high_precision_init_val=True):
        stored = te.Linear(64, 96, device="cpu")
    assert type(stored.weight) is TENSOR_CLASSES[name]
    plain = te.Linear(64, 96, device="cpu")
    with torch.no_grad():
        plain.weight.copy_(stored.weight.get_high_precision_init_val())
        plain.bias.copy_(stored.bias)
    x = torch.randn(32, 64, requires_grad=True)
    results = []
    for layer in (stored, plain):
        x.grad = None
        with te.autocast(recipe=recipe):
            y = layer(x)
        y.sum().backward()
        results.append((y, x.grad.clone(), layer.weight.grad))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)
    # An optimizer updates a master copy, and the weight takes its values in its own format.
    master = stored.weight.get_high_precision_init_val() - 0.1
    stored.weight.quantize_(master)
    assert type(stored.weight) is TENSOR_CLASSES[name]
    assert (stored.weight.dequantize() - master).abs().max() < 0.25 * master.abs().max()


@pytest.mark.parametrize("name", ["mxfp8", "block", "nvfp4"])
def test_quantized_tensors_are_copied_pickled_and_saved(name):
    x = torch.randn(48, 64)
    quantized = quantizer_of(RECIPES[name], "activation")(x)
    assert type(quantized) is TENSOR_CLASSES[name]
    assert isinstance(quantized, te.QuantizedTensor)
    assert not isinstance(quantized, te.Float8Tensor)
    buffer = io.BytesIO()
    torch.save({"weight": quantized}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)["weight"]
    for other in (loaded, copy.deepcopy(quantized), quantized.clone(), quantized.detach()):
        assert type(other) is TENSOR_CLASSES[name]
        assert torch.equal(other.dequantize(), quantized.dequantize())
        assert torch.equal(columnwise(other), columnwise(quantized))
        assert other._storage.blocks == quantized._storage.blocks
    loaded.quantize_(2 * x)
    assert torch.equal(
        loaded.dequantize(), quantizer_of(RECIPES[name], "activation")(2 * x).dequantize()
    )
    assert quantized.dequantize(torch.float16).dtype == torch.float16
    assert quantized.bfloat16().dtype == torch.bfloat16
    quantized.update_usage(columnwise_usage=False)
    assert quantized._storage.columnwise_data is None
    with pytest.raises(telens.UsageError, match="quantize the high-precision"):
        quantized.update_usage(columnwise_usage=True)


@pytest.mark.parametrize("name", ["mxfp8", "block", "nvfp4"])
def test_quantizers_update_their_own_tensors(name):
    quantizer = quantizer_of(RECIPES[name], "activation")
    target = quantizer.make_empty((48, 64))
    assert target.dequantize().count_nonzero() == 0
    codes = target._storage.rowwise_data.data_ptr()
    x = torch.randn(48, 64)
    assert quantizer.update_quantized(x, target) is target
    assert torch.equal(target.dequantize(), quantizer.copy()(x).dequantize())
    assert torch.equal(columnwise(target), columnwise(quantizer(x)))
    assert target._storage.rowwise_data.data_ptr() == codes
    with pytest.raises(telens.UsageError, match="storage to fill"):
        te.Float8CurrentScalingQuantizer(E4M3).update_quantized(x, target)


@pytest.mark.parametrize(
    ("recipe", "features", "message"),
    [
        (MXFP8BlockScaling(), 48, r"weight has shape \[48, 64\].*multiples of 32"),
        (Float8BlockScaling(), 40, r"multiples of 16"),
        (NVFP4BlockScaling(), 40, r"multiples of 16"),
    ],
)
def test_features_that_a_gemm_does_not_take_are_named(recipe, features, message):
    layer = te.Linear(64, features, device="cpu", name="decoder.proj")
    with te.autocast(recipe=recipe), pytest.raises(telens.ShapeError, match=message) as error:
        layer(torch.randn(32, 64))
    assert "decoder.proj" in str(error.value)


def test_impossible_recipes_are_refused():
    with pytest.raises(telens.UsageError, match="at most one 2"):
        Float8BlockScaling(x_block_scaling_dim=2)
    with pytest.raises(telens.UsageError, match="E5M2"):
        MXFP8BlockScaling(fp8_format=Format.E5M2)
    with pytest.raises(telens.UsageError, match="E2M1 is not an FP8 format"):
        DelayedScaling(fp8_format=Format.E2M1)
    with pytest.raises(telens.UsageError, match="fp4_format"):
        NVFP4BlockScaling(fp4_format=Format.E4M3)
    with pytest.raises(telens.UsageError, match="qfactory must be a function"):
        CustomRecipe(qfactory="mxfp8")


def test_recipes_report_their_kind():
    assert MXFP8BlockScaling().mxfp8()
    assert Float8BlockScaling().float8_block_scaling()
    assert NVFP4BlockScaling().nvfp4()
    assert CustomRecipe(qfactory=lambda role: None).custom()
    assert not NVFP4BlockScaling().float8_per_tensor_scaling()
    assert NVFP4BlockScaling().fp4_quant_bwd_grad.stochastic_rounding
    assert not NVFP4BlockScaling(disable_rht=True).fp4_quant_fwd_inp.random_hadamard_transform


def test_numbers_too_small_for_bf16_products_are_multiplied_in_fp32():
    layer = te.Linear(64, 64, bias=False, params_dtype=torch.bfloat16, device="cpu")
    with torch.no_grad():
        layer.weight.fill_(2.0**100)
    # 2^-120 fits BF16, but small elements of its block are subnormal in BF16.
    x = torch.full((64, 64), 2.0**-130, dtype=torch.bfloat16)
    x[:, ::32] = 2.0**-120
    with te.autocast(recipe=MXFP8BlockScaling()):
        y = layer(x)
    expected = te.MXFP8Quantizer(E4M3)(x).dequantize(torch.float64).sum(1) * 2.0**100
    torch.testing.assert_close(y[:, 0].double(), expected, rtol=2**-8, atol=0)
