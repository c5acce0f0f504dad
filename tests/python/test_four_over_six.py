"""NVFP4 whose blocks are scaled to a maximum of 4 or 6, against NumPy and ml_dtypes."""

import itertools

import h5py
import numpy as np
import pytest
import torch
from block_references import E2M1, E4M3, FLT_MAX, LARGEST, ONE, amax_of_blocks, rounded, spread
from debug_helpers import config_of
from replay_cases import recorded

import telens
import telens.pytorch as te
from telens import _C, debug
from telens.common.recipe import NVFP4BlockScaling, QParams
from telens.replay import gemm_error

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SHAPES = ((1, 1), (16, 16), (33, 70), (48, 64), (5, 16))
ERRORS = ("MAE", "MSE")
PLAIN = {"disable_rht": True, "disable_stochastic_rounding": True}


def four_over_six(x, height, largest_scale, error):
    """Returns values and scales of x in blocks of height x 16, and which blocks are scaled to 4."""
    with np.errstate(all="ignore"):
        largest_scale = np.float32(largest_scale)
        largest = np.max(np.abs(x[~np.isnan(x)]), initial=np.float32(0))
        factor = largest_scale * np.float32(6) / largest if 0 < largest < np.inf else ONE
        factor = np.minimum(factor, FLT_MAX)
        wanted = amax_of_blocks(x, height, 16, nan_wins=True) / np.float32(6) * factor
        four, six = (
            candidate(x, np.minimum(wanted * stretch, LARGEST[E4M3]), height, ONE / factor)
            for stretch in (np.float32(1.5), ONE)
        )
        errors = [
            error_of_blocks(
                x,
                codes * spread(scales, x, height, 16) * largest / (6 * largest_scale),
                height,
                error,
            )
            for codes, scales in (four, six)
        ]
        takes_four = errors[0] < errors[1]
        scales = np.where(takes_four, four[1], six[1])
        codes = np.where(spread(takes_four, x, height, 16), four[0], six[0])
        return codes * (spread(scales, x, height, 16) * (ONE / factor)), scales, takes_four


def candidate(x, wanted, height, tensor_scale):
    scales = wanted.astype(E4M3).astype(np.float32)
    of_elements = spread(scales, x, height, 16)
    return rounded(x * np.minimum(ONE / (of_elements * tensor_scale), FLT_MAX), E2M1), scales


def error_of_blocks(x, values, height, error):
    """Added in FP32: along a row one by one, of sixteen rows those 8, 4, 2 and 1 apart."""
    difference = values - x
    of_elements = difference * difference if error == "MSE" else np.abs(difference)
    rows, columns = x.shape
    padded = np.pad(of_elements, ((0, -rows % height), (0, -columns % 16)))
    lines = padded.reshape(padded.shape[0], -1, 16)
    sums = np.zeros(lines.shape[:2], np.float32)
    for i in range(16):
        sums = sums + lines[:, :, i]
    sums = sums.reshape(-1, height, sums.shape[1])
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    return sums[:, 0]


def samples(shape, dtype):
    """Normal data, wide data, zeros of both signs, values that are not finite."""
    generator = torch.Generator().manual_seed(shape[0] * 100 + shape[1])
    normal = torch.randn(shape, generator=generator)
    wide = normal * torch.randn(shape, generator=generator).mul(4).exp2()
    zeros = torch.zeros(shape)
    zeros[..., ::2] = -0.0
    yield from (t.to(dtype) for t in (normal, wide, zeros, torch.full(shape, 1e-30)))
    for value in (float("nan"), float("inf"), -float("inf")):
        broken = wide.clone()
        broken.view(-1)[broken.numel() // 2] = value
        yield broken.to(dtype)


def quantizer(error="MAE", largest_scale=256, squares=False):
    return te.NVFP4Quantizer(
        nvfp4_use_4over6=True,
        nvfp4_e4m3_max=largest_scale,
        nvfp4_4over6_err_mode=error,
        with_2d_quantization=squares,
    )


def one_orientation(made, x, columnwise):
    """Values and scales in the orientation of the copy."""
    made.set_usage(rowwise=not columnwise, columnwise=columnwise)
    quantized = made(x)
    storage = quantized._storage
    scales = storage.columnwise_scale_inv if columnwise else storage.rowwise_scale_inv
    values = quantized.dequantize(dtype=torch.float32)
    return (values.t() if columnwise else values).numpy(), scales.contiguous().numpy().view(E4M3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("columnwise", [False, True])
def test_blocks_match_numpy(dtype, shape, columnwise):
    choices = set()
    for error, largest_scale, x in itertools.product(ERRORS, (256, 448), samples(shape, dtype)):
        values, scales = one_orientation(quantizer(error, largest_scale), x, columnwise)
        matrix = x.float().numpy()
        matrix = matrix.T if columnwise else matrix
        expected, of_blocks, takes_four = four_over_six(matrix, 1, largest_scale, error)
        np.testing.assert_array_equal(values, expected)
        np.testing.assert_array_equal(scales.astype(np.float32), of_blocks)
        choices |= set(takes_four.reshape(-1).tolist())
    assert choices == {False, True} or shape == (1, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_square_blocks_match_numpy_in_two_orientations(dtype, shape):
    for error, largest_scale, x in itertools.product(ERRORS, (256, 448), samples(shape, dtype)):
        expected, of_squares, _ = four_over_six(x.float().numpy(), 16, largest_scale, error)
        of_rows = np.repeat(of_squares, 16, 0)[: shape[0]]
        of_columns = np.repeat(of_squares.T, 16, 0)[: shape[1]]
        for columnwise, scales_of_lines in ((False, of_rows), (True, of_columns)):
            made = quantizer(error, largest_scale, squares=True)
            values, scales = one_orientation(made, x, columnwise)
            np.testing.assert_array_equal(values.T if columnwise else values, expected)
            np.testing.assert_array_equal(scales.astype(np.float32), scales_of_lines)


def test_block_with_element_between_4_and_6_scales_to_4():
    """Of 10, 20, 30 and 40, 30 has no code with the scale 40 / 6; with 40 / 4 each has one."""
    x = torch.tensor([[10.0, 20.0, 30.0, 40.0] * 4])
    assert torch.equal(quantizer()(x).dequantize(), x)
    plain = te.NVFP4Quantizer()(x).dequantize()
    assert (plain - x)[0, 2].abs() > 2


@pytest.mark.parametrize("error", ERRORS)
def test_no_block_has_a_larger_error_than_scaled_to_six(error):
    """With the same tensor scale. The bound: 16 additions and 4 roundings of each element in
    FP32.
    """
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(4))

    def errors(made):
        difference = (made(x).dequantize(dtype=torch.float32) - x).double().view(64, 16, 16)
        return (difference.square() if error == "MSE" else difference.abs()).sum(-1)

    chosen, six = errors(quantizer(error, 448)), errors(te.NVFP4Quantizer())
    assert (chosen <= six * (1 + 24 * 2.0**-24) + 1e-9).all()
    assert chosen.sum() < 0.99 * six.sum()


@pytest.mark.parametrize("shape", [(0, 16), (16, 0), (0, 0)])
@pytest.mark.parametrize("squares", [False, True])
def test_empty_tensor_yields_no_blocks(shape, squares):
    assert quantizer(squares=squares)(torch.empty(shape)).dequantize().shape == shape


def test_the_meta_kernel_has_the_shapes_and_strides_of_the_cpu():
    operator = torch.ops.telens.quantize_four_over_six
    for squares in (False, True):
        x = torch.randn(40, 70)
        real = operator(x, squares, False, 256.0, True, True)
        meta = operator(x.to("meta"), squares, False, 256.0, True, True)
        for a, b in zip(real, meta, strict=True):
            assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


def test_given_amaxes_take_the_place_of_the_tensors_own():
    x = torch.randn(32, 32)
    operator = torch.ops.telens.quantize_four_over_six
    whole = torch.cat([x, 8 * torch.ones(32, 32)])
    amaxes = torch.tensor([8.0, 8.0])
    parts = operator(x, False, False, 256.0, True, True, amaxes)
    expected = operator(whole, False, False, 256.0, True, True)
    assert torch.equal(parts[0], expected[0][:32])
    assert torch.equal(parts[3], expected[3][:, :16])
    assert torch.equal(parts[2], expected[2])


def test_a_quantized_tensor_remembers_the_choice(tmp_path):
    x = torch.randn(32, 64)
    for made in (quantizer("MSE", 448), te.NVFP4Quantizer()):
        quantized = made(x)
        torch.save(quantized, tmp_path / "tensor.pt")
        loaded = torch.load(tmp_path / "tensor.pt", weights_only=False)
        assert loaded._storage.blocks == quantized._storage.blocks
        again = _C.quantizer_like(loaded._storage).quantize(x)
        assert torch.equal(again._storage.rowwise_data, quantized._storage.rowwise_data)


def forward(recipe, columns=64):
    torch.manual_seed(0)
    layer = te.Linear(columns, 32, bias=False)
    x = torch.randn(32, columns).requires_grad_()
    with te.autocast(enabled=True, recipe=recipe):
        out = layer(x)
    out.sum().backward()
    return layer, x, out


@pytest.mark.parametrize(
    ("scope", "of_input", "of_weight"),
    [("none", 0, 0), ("weights", 0, 1), ("activations", 1, 0), ("all", 1, 1)],
)
def test_a_recipe_scales_the_tensors_of_its_scope(scope, of_input, of_weight):
    recipe = NVFP4BlockScaling(
        **PLAIN,
        nvfp4_4over6=scope,
        nvfp4_4over6_e4m3_use_256="weights",
        nvfp4_4over6_err_mode="MSE",
    )
    layer, x, out = forward(recipe)
    a = quantizer("MSE", 448) if of_input else te.NVFP4Quantizer()
    b = quantizer("MSE", 256, True) if of_weight else te.NVFP4Quantizer(with_2d_quantization=True)
    product = a(x).dequantize().double() @ b(layer.weight).dequantize().double().T
    bound = 66 * 2.0**-24 * (x.abs().max() * layer.weight.abs().max() * 64 * 2).item()
    assert (out.double() - product).abs().max() <= bound
    gradient = te.NVFP4Quantizer()(torch.ones(32, 32)).dequantize().double()
    expected = gradient @ b(layer.weight).dequantize().double()
    assert (x.grad.double() - expected).abs().max() <= bound


def test_hadamard_recipe_accepts_only_weights():
    forward(NVFP4BlockScaling(nvfp4_4over6="weights"))
    for scope in ("all", "activations"):
        with pytest.raises(telens.UsageError, match="excludes their random Hadamard transform"):
            forward(NVFP4BlockScaling(nvfp4_4over6=scope))
    assigned = NVFP4BlockScaling(nvfp4_4over6="all")
    assigned.fp4_quant_fwd_inp = QParams()
    assigned.fp4_quant_bwd_grad = QParams()
    forward(assigned)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nvfp4_4over6", "both"),
        ("nvfp4_4over6", True),
        ("nvfp4_4over6_e4m3_use_256", "input"),
        ("nvfp4_4over6_err_mode", "mae"),
    ],
)
def test_another_word_is_an_error_that_names_those_there_are(name, value):
    with pytest.raises(telens.UsageError, match=f"{name} is {value!r}; expected one of '"):
        NVFP4BlockScaling(**{name: value})


def test_quantizer_rejects_incompatible_options():
    for excluded in ("with_rht", "stochastic_rounding"):
        with pytest.raises(telens.UsageError, match="excludes with_rht and stochastic_rounding"):
            te.NVFP4Quantizer(nvfp4_use_4over6=True, **{excluded: True})
    with pytest.raises(telens.UsageError, match="largest_scale is 300; expected 256 or 448"):
        quantizer(largest_scale=300)
    with pytest.raises(telens.UsageError, match="err_mode is 'SSE'; expected 'MAE' or 'MSE'"):
        quantizer("SSE")


def test_replay_knows_how_a_dumped_operand_was_scaled(tmp_path):
    """The row's own amax gives its scales, so the choice of the scale has no error."""
    config = config_of("DumpTensors", tensors=["activation", "weight", "output"], operands=True)
    recipe = NVFP4BlockScaling(**PLAIN, nvfp4_4over6="all", nvfp4_4over6_err_mode="MSE")
    layer = te.Linear(64, 32, params_dtype=torch.bfloat16, name="fc")
    with debug.session(config, log_dir=tmp_path):
        with te.autocast(enabled=True, recipe=recipe):
            layer(torch.randn(32, 64, dtype=torch.bfloat16)).float().sum().backward()
        debug.step()
    path = tmp_path / "tensor_dumps/rank_0/iter_000000/fc_fprop_gemm.h5"
    with h5py.File(path) as file:
        assert file["a"].attrs["four_over_six_largest_scale"] == 256
    rows = {row["part"]: row["relative_error"] for row in gemm_error.figures(recorded(path)).rows}
    assert rows["scale choice activation"] == rows["scale choice weight"] == 0
    assert rows["quantizing activation"] > 0
