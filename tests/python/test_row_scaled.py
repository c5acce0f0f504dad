"""NVFP4 with a scale for each row instead of one for the tensor, against NumPy and ml_dtypes."""

import h5py
import numpy as np
import pytest
import torch
from block_references import E4M3, nvfp4
from debug_helpers import Scalars, config_of, logging_of
from replay_cases import recorded

import telens
import telens.pytorch as te
from telens import _C, debug
from telens.common.recipe import NVFP4BlockScaling
from telens.replay import gemm_error

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SHAPES = ((1, 1), (16, 16), (33, 70), (5, 2064))
PLAIN = {"disable_rht": True, "disable_stochastic_rounding": True}
RECIPE = NVFP4BlockScaling(**PLAIN, row_scaled_activation=True)
UNIT = 2.0**-24


def matrix(shape, dtype=torch.float32):
    """Rows of very different magnitude, with NaN, Inf, zeros of both signs and subnormals."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator)
    x *= torch.linspace(-12, 12, shape[0]).exp2().view(-1, 1)
    x = x.to(dtype)
    specials = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, torch.finfo(dtype).tiny / 4)
    if shape[0] > 12:
        for row, value in enumerate(specials):
            x[2 * row] = value  # the whole row
            x[2 * row + 1, row % shape[1]] = value
    return x


def by_rows(**arguments):
    return te.NVFP4Quantizer(row_scaled_nvfp4=True, **arguments)


def one_orientation(quantizer, x, columnwise):
    """Returns values in the orientation of the copy, and the scales of blocks and of lines."""
    quantizer.set_usage(rowwise=not columnwise, columnwise=columnwise)
    quantized = quantizer(x)
    storage = quantized._storage
    scales = storage.columnwise_scale_inv if columnwise else storage.rowwise_scale_inv
    of_lines = storage.columnwise_tensor_scale if columnwise else storage.rowwise_tensor_scale
    values = quantized.dequantize(dtype=torch.float32)
    values = values.t() if columnwise else values
    return values.numpy(), scales.contiguous().numpy().view(E4M3).astype(np.float32), of_lines


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("columnwise", [False, True])
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")
def test_each_row_matches_a_separate_numpy_cast(dtype, shape, columnwise):
    x = matrix(shape[::-1], dtype).t() if columnwise else matrix(shape, dtype)
    values, scales, of_lines = one_orientation(by_rows(), x, columnwise)
    lines = x.float().numpy()
    lines = lines.T if columnwise else lines
    assert of_lines.shape == (len(lines),)
    for line, expected in enumerate(lines):
        with np.errstate(all="ignore"):
            decoded, of_blocks = nvfp4(expected[None])
        np.testing.assert_array_equal(values[line], decoded[0])
        numbers = ~np.isnan(decoded[0])
        np.testing.assert_array_equal(
            np.signbit(values[line])[numbers], np.signbit(decoded[0])[numbers]
        )
        np.testing.assert_array_equal(scales[line] * of_lines[line].numpy(), of_blocks[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columnwise", [False, True])
@pytest.mark.parametrize("error", ["MAE", "MSE"])
def test_four_or_six_scaling_is_per_row(dtype, columnwise, error):
    options = {"nvfp4_use_4over6": True, "nvfp4_4over6_err_mode": error, "nvfp4_e4m3_max": 256}
    x = matrix((33, 70), dtype)
    x = x.t() if columnwise else x
    values, scales, of_lines = one_orientation(by_rows(**options), x, columnwise)
    lines = x.t() if columnwise else x
    for line in range(len(lines)):
        alone = te.NVFP4Quantizer(**options)
        expected, of_blocks, scale = one_orientation(alone, lines[line : line + 1], False)
        np.testing.assert_array_equal(values[line], expected[0])
        np.testing.assert_array_equal(scales[line], of_blocks[0])
        assert torch.equal(of_lines[line], scale[0])


@pytest.mark.parametrize("shape", [(0, 16), (16, 0), (0, 0)])
def test_empty_tensor_has_only_row_scales(shape):
    for options in ({}, {"nvfp4_use_4over6": True}):
        made = by_rows(**options)(torch.empty(shape))
        assert made.dequantize().shape == shape
        assert torch.equal(made._storage.rowwise_tensor_scale, torch.ones(shape[0]))
        assert torch.equal(made._storage.columnwise_tensor_scale, torch.ones(shape[1]))


@pytest.mark.parametrize("shape", [(40, 70), (0, 16), (16, 0)])
def test_the_meta_kernels_have_the_shapes_and_strides_of_the_cpu(shape):
    ops, x = torch.ops.telens, torch.randn(shape)
    for operator, options in (
        (ops.quantize_nvfp4, (False, None, None, True, True, None, True)),
        (ops.quantize_four_over_six, (False, False, 256.0, True, True, None, True)),
    ):
        for a, b in zip(operator(x, *options), operator(x.to("meta"), *options), strict=True):
            assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


def test_options_excluding_row_scales_are_named():
    excluded = ("with_rht", "with_2d_quantization", "stochastic_rounding", "with_amax_reduction")
    for name in excluded:
        with pytest.raises(telens.UsageError, match=f"row_scaled_nvfp4 excludes .*{name}"):
            by_rows(**{name: True})
    ops, x, chance = torch.ops.telens, torch.randn(16, 16), torch.zeros(2, dtype=torch.int64)
    for arguments, message in (
        ((False, 1, None, True, True, None), "excludes the random Hadamard transform"),
        ((False, None, chance, True, True, None), "excludes stochastic rounding"),
        ((True, None, None, True, True, None), "excludes 16x16 blocks"),
        ((False, None, None, True, True, torch.ones(2)), "excludes amaxes"),
    ):
        with pytest.raises(Exception, match=f"quantize_nvfp4: row_scaled.* {message}"):
            ops.quantize_nvfp4(x, *arguments, True)
    codes, scales, *_ = ops.quantize_nvfp4(x, False, None, None, True, True, None, True)
    with pytest.raises(Exception, match=r"shape \[15\].*one for each row of the codes, \[16\]"):
        ops.dequantize_blocks(codes, scales, torch.ones(15), 2, 4, torch.float32)
    rotates = te.autocast(recipe=NVFP4BlockScaling(row_scaled_activation=True))
    with pytest.raises(telens.UsageError, match="set disable_rht"), rotates:
        pass


def close(product, a, b, bias=None):
    """Compares a product of quantized operands [M, K] and [N, K] with FP64. FP32 rounds each term
    and each partial sum once, then the scales and the bias are applied.
    """
    a, b = a.double(), b.double()
    exact, size = a @ b.T, a.abs() @ b.abs().T
    if bias is not None:
        exact, size = exact + bias.double(), size + bias.double().abs()
    bound = (a.shape[1] + 4) * UNIT * size
    assert ((product.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("tokens", [1, 5, 32])
@pytest.mark.parametrize("name", ["Linear", "GroupedLinear"])
def test_products_are_independent_of_row_scales(tokens, name):
    torch.manual_seed(0)
    x = torch.randn(tokens, 64)
    x *= torch.logspace(0, -30, tokens, base=10).view(-1, 1)
    x.requires_grad_()
    grouped = name == "GroupedLinear"
    layer = te.GroupedLinear(1, 64, 32) if grouped else te.Linear(64, 32)
    weight, bias = (layer.weight0, layer.bias0) if grouped else (layer.weight, layer.bias)
    torch.nn.init.normal_(bias)
    bias.data.copy_(bias.data.bfloat16())
    with te.autocast(recipe=RECIPE):
        out = layer(x, [tokens]) if grouped else layer(x)
    grad = torch.randn(tokens, 32)
    out.backward(grad)
    of_weight = te.NVFP4Quantizer(with_2d_quantization=True)
    close(out, by_rows()(x).dequantize(), of_weight(weight).dequantize(), bias)
    rows_of_x = by_rows(rowwise=False)(x).dequantize()
    columns_of_grad = te.NVFP4Quantizer(rowwise=False)(grad).dequantize()
    close(weight.grad, columns_of_grad.T, rows_of_x.T)
    close(x.grad, te.NVFP4Quantizer()(grad).dequantize(), of_weight(weight).dequantize().T)


def test_small_row_next_to_large_row_keeps_values():
    """With one scale for the tensor, the small row would become zeros."""
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    x[1:] *= 2.0**-60
    error = (by_rows()(x).dequantize() - x).abs().amax(1) / x.abs().amax(1)
    assert (error < 0.2).all()
    assert not te.NVFP4Quantizer()(x).dequantize()[1:].any()


def test_a_product_of_scales_below_fp32_keeps_the_sums_digits():
    """Scales of 2^-120 and of 2^-24: FP32 has no normal number for their product."""
    a = torch.randn(16, 512) * torch.linspace(0, -1, 16).exp2().view(-1, 1) * 2.0**-110
    b = torch.randn(16, 512) * 2.0**-14
    operands = []
    for quantizer, x in ((by_rows(), a), (te.NVFP4Quantizer(), b)):
        storage = quantizer(x)._storage
        operands += [storage.rowwise_data, storage.rowwise_scale_inv, storage.rowwise_tensor_scale]
        operands += [2, 4]
    product = torch.ops.telens.gemm(*operands, None, torch.float32)
    values = [
        q(x).dequantize(dtype=torch.float32) for q, x in ((by_rows(), a), (te.NVFP4Quantizer(), b))
    ]
    close(product, *values)
    accumulated = torch.full((16, 16), 2.0**-110)
    torch.ops.telens.gemm_accumulate(*operands, accumulated)
    assert torch.equal(accumulated, product + 2.0**-110)


def test_both_operands_may_have_scales_of_rows():
    a, b = matrix((5, 64)), matrix((7, 64))
    operands = []
    for x in (a, b):
        storage = by_rows()(x)._storage
        operands += [storage.rowwise_data, storage.rowwise_scale_inv, storage.rowwise_tensor_scale]
        operands += [2, 4]
    for dtype in DTYPES:
        bias = torch.randn(7).bfloat16().to(dtype)
        product = torch.ops.telens.gemm(*operands, bias, dtype)
        meta = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in operands]
        assert torch.ops.telens.gemm(*meta, bias.to("meta"), dtype).shape == product.shape
        exact = torch.ops.telens.gemm(*operands, None, torch.float32)
        close(exact, *(by_rows()(x).dequantize() for x in (a, b)))
        assert torch.equal(product, (exact + bias.float()).to(dtype))


def test_weights_and_gradients_keep_one_scale_a_tensor(tmp_path):
    """Replay casts each operand of a dump with the scales of its own amaxes."""
    config = config_of("DumpTensors", tensors=["activation", "weight", "output"], operands=True)
    layer = te.Linear(64, 32, params_dtype=torch.bfloat16, name="fc")
    with debug.session(config, log_dir=tmp_path):
        with te.autocast(recipe=RECIPE):
            x = torch.randn(32, 64).mul(torch.linspace(0, 9, 32).exp2().view(-1, 1)).bfloat16()
            layer(x).float().sum().backward()
        debug.step()
    path = tmp_path / "tensor_dumps/rank_0/iter_000000/fc_fprop_gemm.h5"
    with h5py.File(path) as file:
        assert file["a/tensor_scale"].shape == (32,)
        assert file["a"].attrs["row_scaled"] == 1
        assert file["b/tensor_scale"].shape == (1,)
        assert "row_scaled" not in file["b"].attrs
    rows = {row["part"]: row["relative_error"] for row in gemm_error.figures(recorded(path)).rows}
    assert rows["scale choice activation"] == rows["scale choice weight"] == 0
    assert rows["quantizing activation"] > 0
    assert rows["accumulation"] < 0.01  # the values are those that the GEMM multiplied


def test_copies_pickles_and_views_keep_row_scales(tmp_path):
    x = matrix((32, 64))
    made = by_rows()(x)
    assert made._row_scaled_nvfp4
    assert not te.NVFP4Quantizer()(x)._row_scaled_nvfp4
    torch.save(made, tmp_path / "tensor.pt")
    values = made.dequantize().view(torch.int32)
    for copy in (torch.load(tmp_path / "tensor.pt", weights_only=True), made.clone()):
        assert torch.equal(copy.dequantize().view(torch.int32), values)
        again = _C.quantizer_like(copy._storage)
        assert again.row_scaled_nvfp4
        assert torch.equal(again(x)._storage.rowwise_data, made._storage.rowwise_data)
    assert torch.equal(made.view(2, 16, 64).dequantize().view(torch.int32).view(32, 64), values)
    order = torch.randperm(32)
    routing = torch.zeros(32, 32, dtype=torch.int32)
    routing[order, torch.arange(32)] = 1  # token order[i] to expert i
    permuted, _ = te.moe_permute(made, routing, num_out_tokens=32, map_type="mask")
    assert torch.equal(permuted.dequantize().view(torch.int32), values[order])


def test_row_scaled_output_feeds_the_next_layer():
    torch.manual_seed(0)
    first, second = te.Linear(64, 32), te.Linear(32, 32)
    x = torch.randn(16, 64)
    with te.autocast(recipe=RECIPE):
        codes = first(x, fp8_output=True)
        assert codes._row_scaled_nvfp4
        assert torch.equal(second(codes), second(first(x)))


def test_cast_statistics_match_row_values(tmp_path):
    config = logging_of(["activation"], ["mse", "underflows%"], "LogFp8TensorStats")
    layer, x, logger = te.Linear(64, 32, name="fc"), matrix((9, 64)), Scalars()
    with debug.session(config, log_dir=tmp_path, statistics_logger=logger):
        with te.autocast(recipe=RECIPE):
            layer(x)
        debug.step()
    values = by_rows(columnwise=False)(x).dequantize()
    error = (values.double() - x.double()).square().mean().item()
    assert logger.values("fc_activation_mse")[0] == pytest.approx(error, rel=1e-6)
    zeroed = 100 * ((values == 0) & (x != 0)).double().mean().item()
    assert logger.values("fc_activation_underflows%")[0] == pytest.approx(zeroed)
