"""fp8_output and fp8_grad: codes that one layer passes to the next one, which does not cast."""

import json
import subprocess

import pytest
import torch
from debug_helpers import Scalars, section

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

BLOCKS = [MXFP8BlockScaling, Float8BlockScaling, NVFP4BlockScaling]
ROUNDED = 2.0**-7  # twice BF16's unit: of the product, and of what the layer rounds behind it


def make_layers(names=(None, None)) -> tuple[te.Linear, te.Linear]:
    torch.manual_seed(1)
    return tuple(te.Linear(128, 128, params_dtype=torch.bfloat16, name=name) for name in names)


def make_input(*shape: int) -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randn(*(shape or (64, 128)), dtype=torch.bfloat16).requires_grad_()


def assert_is_product(given: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Within the rounding of a sum in FP32 and of BF16 of the product in FP64."""
    expected, magnitudes = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    error = (given.double() - expected).abs()
    assert (error <= ROUNDED * expected.abs() + 2.0**-16 * magnitudes).all()


def primed(layers, x, recipe) -> None:
    """Gives the layers their FP8 state."""
    with te.autocast(recipe=recipe):
        out = layers[1](layers[0](x.detach(), fp8_output=True), fp8_grad=True)
    out.sum().backward()
    for layer in layers:
        layer.zero_grad()


def test_the_next_layer_takes_the_codes_of_an_output_without_a_cast():
    first, second = make_layers()
    x, recipe = (make_input() * 2.0**14).detach().requires_grad_(), DelayedScaling()
    primed((first, second), x, recipe)
    # Scales of input, weight, output. If the next layer cast the output itself, it would clip at
    # 448.
    first.fp8_meta["scaling_fwd"].scale[0] = 2.0**-10
    first.fp8_meta["scaling_fwd"].scale[2] = 2.0**-8
    second.fp8_meta["scaling_fwd"].scale[0] = 1.0
    second.fp8_meta["scaling_fwd"].amax_history.zero_()
    with te.autocast(recipe=recipe):
        out = first(x, fp8_output=True)
        result = second(out)
        assert isinstance(out, te.tensor.Float8Tensor)
        assert out._scale_inv.item() == 2.0**8
        assert out.dequantize().abs().max() > 4480
        weight = te.Float8Quantizer(
            second.fp8_meta["scaling_fwd"].scale[1:2], torch.zeros(1), te.DType.kFloat8E4M3
        )(second.weight).dequantize(torch.float32)
    assert second.fp8_meta["scaling_fwd"].amax_history[:, 0].max() == 0  # it looked at no input
    assert_is_product(result - second.bias, out.dequantize().detach(), weight.t())
    gradient, scale = torch.randn_like(result), torch.ones(1)
    second.fp8_meta["scaling_bwd"].scale[0] = 1.0
    result.backward(gradient)
    codes = te.Float8Quantizer(scale, torch.zeros(1), te.DType.kFloat8E5M2)(gradient)
    assert_is_product(second.weight.grad, codes.dequantize().t(), out.dequantize().detach())


def test_previous_layer_reuses_gradient_codes():
    first, second = make_layers()
    x, recipe = make_input(), DelayedScaling()
    primed((first, second), x, recipe)
    gradient = (torch.randn(64, 128) * 2.0**22).bfloat16()
    # Scales of the output's gradient and of the input's gradient.
    second.fp8_meta["scaling_bwd"].scale.copy_(torch.tensor([2.0**-10, 2.0**-8]))
    first.fp8_meta["scaling_bwd"].scale.fill_(1.0)
    first.fp8_meta["scaling_bwd"].amax_history.zero_()
    input_scale = first.fp8_meta["scaling_fwd"].scale[:1].clone()
    with te.autocast(recipe=recipe):
        middle = first(x)
        out = second(middle, fp8_grad=True)
    seen = []
    middle.register_hook(seen.append)
    out.backward(gradient)
    assert seen[0].abs().max() > 10 * 57344
    assert first.fp8_meta["scaling_bwd"].amax_history[:, 0].max() == 0
    quantizer = te.Float8Quantizer(input_scale, torch.zeros(1), te.DType.kFloat8E4M3)
    assert_is_product(
        first.weight.grad, seen[0].t(), quantizer(x.detach()).dequantize(torch.float32)
    )
    assert torch.equal(first.bias.grad, seen[0].float().sum(0).bfloat16())


@pytest.mark.parametrize("recipe", BLOCKS, ids=lambda recipe: recipe.__name__)
def test_wgrad_reuses_the_columnwise_copy_of_the_gradient(recipe):
    if recipe is NVFP4BlockScaling:  # by chance no two casts are the same
        recipe = NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True)
    else:
        recipe = recipe()
    first, second = make_layers()
    with te.autocast(recipe=recipe):
        out = first(make_input(), fp8_output=True)
        result = second(out)
    storage = out._storage
    columns = columns_of(storage)
    gradient = torch.randn_like(result)
    result.backward(gradient)
    quantizer = second.quantizers["scaling_bwd"][0]
    made = columns_of(quantizer(gradient)._storage)
    assert_is_product(second.weight.grad, made.t(), columns)
    if isinstance(recipe, NVFP4BlockScaling):  # scales that are powers of two round alike
        cast_again = columns_of(second.quantizers["scaling_fwd"][0](out.dequantize())._storage)
        assert not torch.equal(columns, cast_again)


def columns_of(storage) -> torch.Tensor:
    """Returns the values of the copy with blocks along columns."""
    copy = telens._C.QuantizedStorage(
        None, None, storage.columnwise_data, storage.columnwise_scale_inv, storage.fp8_dtype,
        storage.mode, torch.float32, storage.sizes, None, storage.columnwise_tensor_scale,
    )  # fmt: skip
    copy.blocks = storage.blocks
    return copy.dequantize(torch.float32)


def test_gradients_through_an_fp8_output_are_unchanged():
    first, second = make_layers()
    x, recipe = make_input(4, 16, 128), Float8CurrentScaling()
    with te.autocast(recipe=recipe):
        out = first(x, fp8_output=True)
        result = second(out.view(64, 128))
        plain = first(x)
    seen = []
    out.register_hook(seen.append)
    result.square().sum().backward()
    assert seen[0].shape == out.shape == (4, 16, 128)
    expected = torch.autograd.grad(plain, [x, first.weight], seen[0])
    assert torch.equal(x.grad, expected[0])
    assert torch.equal(first.weight.grad, expected[1])


def test_other_operations_see_values_and_are_differentiable():
    first, _ = make_layers()
    x, recipe = make_input(4, 16, 128), Float8CurrentScaling()
    with te.autocast(recipe=recipe):
        out = first(x, fp8_output=True)
    values = out.dequantize()
    assert not isinstance(values, te.QuantizedTensor)
    assert values.grad_fn is not None
    assert torch.equal(out + 1, values + 1)
    assert out.float().dtype == torch.float32
    assert torch.equal(out.float().bfloat16(), values)
    gradients = [torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0]
                 for y in (out, values, out.view(64, 128), out.reshape(-1, 64))]  # fmt: skip
    assert all(torch.equal(each, gradients[0]) for each in gradients)
    viewed = out.view(64, 128)
    assert isinstance(viewed, te.QuantizedTensor)
    assert viewed._data.data_ptr() == out._data.data_ptr()
    assert torch.equal(viewed.dequantize(), values.view(64, 128))
    assert not isinstance(out.view(64, 2, 64), te.QuantizedTensor)


BF16 = {"params_dtype": torch.bfloat16}
TAKERS = {
    "another recipe": (lambda: te.Linear(128, 64, **BF16), MXFP8BlockScaling),
    "no recipe": (lambda: te.Linear(128, 64, **BF16), None),
    "a norm": (lambda: te.LayerNormLinear(128, 64, **BF16), Float8CurrentScaling),
    "an MLP": (lambda: te.LayerNormMLP(128, 64, **BF16), Float8CurrentScaling),
    "experts": (lambda: te.GroupedLinear(2, 128, 64, **BF16), Float8CurrentScaling),
    "torch": (lambda: torch.nn.Linear(128, 64, dtype=torch.bfloat16), None),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_consumers_without_code_support_use_values(taker):
    make, recipe = TAKERS[taker]
    torch.manual_seed(1)
    first, second = te.Linear(128, 128, params_dtype=torch.bfloat16), make()
    x = make_input()
    splits = [[32, 32]] if isinstance(second, te.GroupedLinear) else []

    with te.autocast(recipe=Float8CurrentScaling()):
        out = first(x, fp8_output=True)
    results = []
    for given in (out, out.dequantize()):
        with te.autocast(enabled=recipe is not None, recipe=recipe and recipe()):
            results.append(gradients_of(second(given, *splits), x, second))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def gradients_of(result, x, layer) -> list[torch.Tensor]:
    wanted = [x, *layer.parameters()]
    return [result, *torch.autograd.grad(result.square().sum(), wanted, retain_graph=True)]


def test_a_copy_that_is_missing_is_made_of_the_one_that_came():
    _, second = make_layers()
    x = make_input().detach()
    recipe = MXFP8BlockScaling()
    quantizer = te.MXFP8Quantizer(te.DType.kFloat8E4M3, columnwise=False)
    results = []
    for given in (quantizer(x), quantizer(x).dequantize()):
        with te.autocast(recipe=recipe):
            out = second(given)
        results.append([out, *torch.autograd.grad(out.square().sum(), second.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_in_place_change_of_an_output_invalidates_its_codes():
    first, second = make_layers()
    recipe = Float8CurrentScaling()
    with te.autocast(recipe=recipe):
        with torch.no_grad():
            out = first(make_input(), fp8_output=True)
            out.mul_(3)
            changed = second(out)
            assert torch.equal(changed, second(te.Float8CurrentScalingQuantizer(
                te.DType.kFloat8E4M3)(out.dequantize())))  # fmt: skip
        out = first(make_input(), fp8_output=True)
        result = second(out)
    with torch.no_grad():
        out.detach().mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_gradient_changed_by_a_hook_is_cast_again():
    x, recipe = make_input(), Float8CurrentScaling()

    def gradients(hook, **options) -> list[torch.Tensor]:
        first, second = make_layers()
        with te.autocast(recipe=recipe):
            middle = first(x)
            out = second(middle, **options)
        middle.register_hook(hook)
        return torch.autograd.grad(out.square().sum(), [x, first.weight, first.bias])

    seen = []
    gradients(seen.append, fp8_grad=True)
    changed = gradients(lambda gradient: gradient.mul_(3), fp8_grad=True)
    expected = gradients(lambda gradient: seen[0] * 3)
    assert all(torch.equal(a, b) for a, b in zip(changed, expected, strict=True))


# ---- in a debug session

STATISTICS = {"enabled": True, "tensors": ["activation"], "stats": ["max", "min", "mean"]}
QUANTIZED = {"enabled": True, "tensors": ["activation"], "stats": ["mse", "scale_inv_max"]}
ALTERED = {
    "FakeQuant": {"enabled": True, "gemms": ["fprop", "wgrad"], "tensors": ["activation"],
                  "quant_format": "FP8E5M2"},
    "DisableFP8GEMM": {"enabled": True, "gemms": ["fprop"]},
    "DisableFP8Layer": {"enabled": True},
}  # fmt: skip


def watch(config, tmp_path, given_values: bool = False):
    """Runs a step of both layers, with the second one watched; returns output, gradients and what
    was logged.
    """
    first, second = make_layers(("first", "second"))
    x, logger = make_input(), Scalars()
    with debug.session(config, log_dir=tmp_path, statistics_logger=logger):
        with te.autocast(recipe=Float8CurrentScaling()):
            out = first(x, fp8_output=True)
            result = second(out.dequantize() if given_values else out)
        gradients = torch.autograd.grad(result.square().sum(), [x, *second.parameters()])
        debug.step()
    return out, [result, *gradients], logger


def test_features_see_the_values_and_the_codes_that_came(tmp_path):
    config = section(
        {"LogTensorStats": STATISTICS, "LogFp8TensorStats": QUANTIZED}, layer_types=["second"]
    )
    out, watched, logger = watch(config, tmp_path / "watched")
    _, unwatched, _ = watch(section({}, layer_types=["second"]), tmp_path / "unwatched")
    assert all(torch.equal(a, b) for a, b in zip(watched, unwatched, strict=True))
    logged = {name.split("_activation_", 1)[1]: value for name, value, _ in logger.rows}
    values = out.dequantize().detach().float()
    assert logged["max"] == values.max()
    assert logged["min"] == values.min()
    assert logged["mse"] == 0  # the layer rounds nothing
    assert logged["scale_inv_max"] == out._scale_inv.item()


@pytest.mark.parametrize("feature", ALTERED)
def test_features_that_alter_are_given_the_values(tmp_path, feature):
    config = section({feature: ALTERED[feature]}, layer_types=["second"])
    _, of_codes, _ = watch(config, tmp_path / "codes")
    _, of_values, _ = watch(config, tmp_path / "values", given_values=True)
    if feature == "FakeQuant":  # dgrad casts the gradient, and takes no activation
        assert all(torch.equal(a, b) for a, b in zip(of_codes, of_values, strict=True))
    else:
        assert torch.equal(of_codes[0], of_values[0])


def test_ledger_describes_the_codes(tmp_path, build_folder):
    config = section({"PrecisionLedger": {"enabled": True}}, namespace="telens")
    watch(config, tmp_path)
    listed = subprocess.run(
        [build_folder / "bin/telens", "ledger", tmp_path, "--format", "json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [r for r in json.loads(listed.stdout) if r["tensor"] == "activation"]
    ran = {(row["layer"], row["gemm"]): (row["ran"], row["fallback"]) for row in rows}
    e4m3 = ("E4M3 under tensor scaling", "")
    assert ran == {(layer, gemm): e4m3 for layer in ("first", "second")
                   for gemm in ("fprop", "wgrad")}  # fmt: skip
