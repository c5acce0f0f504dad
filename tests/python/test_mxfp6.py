"""MXFP6 (E3M2 and E2M3) against ml_dtypes, gfloat and a NumPy reference."""

import math
import subprocess

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
import torch
from block_references import E2M3, E3M2, LARGEST, mxfp6
from debug_helpers import Scalars, config_of, logging_of, train

import telens.debug as debug
import telens.pytorch as te
from telens import _C
from telens.common.recipe import Format, MXFP6BlockScaling, MXFP8BlockScaling

NAMES = ["e3m2", "e2m3"]
IDS = {"e3m2": 7, "e2m3": 8}  # FormatId of core/formats/format_id.h
MODES = {"e3m2": 5, "e2m3": 6}  # ScalingMode of core/formats/scheme.h
ML_DTYPES = {"e3m2": E3M2, "e2m3": E2M3}
DTYPES = {"e3m2": _C.DType.kFloat6E3M2, "e2m3": _C.DType.kFloat6E2M3}
FORMATS = {"e3m2": Format.E3M2, "e2m3": Format.E2M3}
OCP = {
    "e3m2": gfloat.formats.format_info_ocp_e3m2,
    "e2m3": gfloat.formats.format_info_ocp_e2m3,
}
BLOCKS = {
    "e3m2": gfloat.formats.format_info_mxfp6_e3m2,
    "e2m3": gfloat.formats.format_info_mxfp6_e2m3,
}
LARGEST_CODE = 31
SCALE_1 = 127  # E8M0 code of 1
NAN_SCALE = 255


def quantize(ops, x, name, rounding=0, square=False):
    return ops.quantize_mxfp6(x, IDS[name], rounding, square, True, True)


def dequantize(ops, codes, scales, name, dtype=torch.float32):
    return ops.dequantize_blocks(codes, scales, None, IDS[name], MODES[name], dtype)


def scales_of(codes):
    return codes.contiguous().numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32)


def encode(build_folder, values, name, mode):
    program = build_folder / "tests/format_codes"
    run = subprocess.run(
        [program, name, mode], input=values.tobytes(), stdout=subprocess.PIPE, check=True
    )
    return np.frombuffer(run.stdout, np.uint8)


def difficult_values(name):
    """All values of BF16, and the codes' values and their ties with the FP32 neighbors of both."""
    bf16 = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    codes = np.arange(64, dtype=np.uint8).view(ML_DTYPES[name]).astype(np.float32)
    codes = np.unique(codes)
    ties = (codes[1:] + codes[:-1]) / 2
    beyond = codes[-1] + (codes[-1] - codes[-2]) / 2  # a tie with the code that would follow
    exact = np.concatenate([codes, ties, [beyond, -beyond]]).astype(np.float32)
    near = [np.nextafter(exact, np.float32(end)) for end in (-np.inf, np.inf)]
    return np.concatenate([bf16.float().numpy(), exact, *near])


def wide(rows, columns, seed=3):
    """Magnitudes over thirty powers of two, and zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    x *= torch.randn(rows, columns, generator=generator).mul(5).exp2()
    return x.where(torch.rand(rows, columns, generator=generator) > 0.1, 0)


@pytest.mark.parametrize("mode", ["saturating", "non_saturating"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_encode_gives_the_codes_of_ml_dtypes(build_folder, name, mode):
    values = difficult_values(name)
    values = values[~np.isnan(values)]
    found = encode(build_folder, values, name, mode)
    np.testing.assert_array_equal(found, values.astype(ML_DTYPES[name]).view(np.uint8))


@pytest.mark.parametrize("name", NAMES)
def test_encode_gives_the_codes_of_gfloat(build_folder, name):
    values = difficult_values(name)[-400:]
    values = np.concatenate([values[~np.isnan(values)], np.float32([0, -0.0, 1e30, -1e30])])
    found = encode(build_folder, values, name, "saturating")
    expected = [
        gfloat.encode_float(OCP[name], gfloat.round_float(OCP[name], float(v), sat=True))
        for v in values
    ]
    assert found.tolist() == expected


@pytest.mark.parametrize("name", NAMES)
def test_nan_encodes_as_the_largest_value(build_folder, name):
    nans = np.array([np.nan, -np.nan], np.float32)
    assert encode(build_folder, nans, name, "saturating").tolist() == [LARGEST_CODE] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_all_codes_decode_as_in_ml_dtypes_and_gfloat(telens_ops, name, dtype):
    codes = torch.arange(64, dtype=torch.uint8).view(1, 64)
    scales = torch.full((1, 2), SCALE_1, dtype=torch.uint8)
    values = dequantize(telens_ops, codes, scales, name, dtype).float().numpy()[0]
    of_ml_dtypes = codes.numpy()[0].view(ML_DTYPES[name]).astype(np.float32)
    np.testing.assert_array_equal(values.view(np.uint32), of_ml_dtypes.view(np.uint32))
    for code in range(64):
        expected = gfloat.decode_float(OCP[name], code).fval
        assert values[code] == expected
        assert math.copysign(1, values[code]) == math.copysign(1, expected)


@pytest.mark.parametrize("shape", [(64, 96), (1, 1), (33, 47), (5, 200)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_blocks_match_the_numpy_reference(telens_ops, name, dtype, shape):
    x = wide(*shape).to(dtype)
    codes, scales, column_codes, column_scales = quantize(telens_ops, x, name)
    assert codes.shape == shape  # one code per byte
    assert int(codes.max()) < 64
    for matrix, found, found_scales in (
        (x, codes, scales),
        (x.t(), column_codes, column_scales),
    ):
        values, expected_scales = mxfp6(np.ascontiguousarray(matrix.float()), ML_DTYPES[name])
        np.testing.assert_array_equal(scales_of(found_scales), expected_scales)
        decoded = dequantize(telens_ops, found, found_scales, name).numpy()
        np.testing.assert_array_equal(decoded, values)


@pytest.mark.parametrize("name", NAMES)
def test_squares_share_a_scale(telens_ops, name):
    x = wide(70, 90)
    codes, scales, column_codes, column_scales = quantize(telens_ops, x, name, square=True)
    values, _ = mxfp6(x.numpy(), ML_DTYPES[name], height=32)
    np.testing.assert_array_equal(dequantize(telens_ops, codes, scales, name).numpy(), values)
    columnwise = dequantize(telens_ops, column_codes, column_scales, name)
    np.testing.assert_array_equal(columnwise.t().numpy(), values)


@pytest.mark.parametrize("name", NAMES)
def test_floor_rounding_gives_the_blocks_of_gfloat(telens_ops, name):
    x = wide(20, 96).bfloat16()
    codes, scales, *_ = quantize(telens_ops, x, name, rounding=1)
    values = dequantize(telens_ops, codes, scales, name)
    info = BLOCKS[name]
    largest = float(LARGEST[ML_DTYPES[name]])
    for row in range(20):
        for block in range(3):
            elements = x[row, 32 * block : 32 * block + 32].double().numpy()
            scale = gfloat.compute_scale_amax(info.etype.emax, elements)
            assert scales_of(scales)[row, block] == scale
            clipped = np.clip(elements, -largest * scale, largest * scale)
            expected = gfloat.quantize_block(info, clipped, lambda _emax, _values, s=scale: s)
            found = values[row, 32 * block : 32 * block + 32].double().numpy()
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_nan_makes_the_scale_of_its_block_nan(telens_ops, name, square):
    x = torch.ones(32, 96)
    x[3, 40] = math.nan
    codes, scales, _, column_scales = quantize(telens_ops, x, name, square=square)
    assert codes[3, 40] == LARGEST_CODE
    nan_rows = 32 if square else 1
    assert (scales == NAN_SCALE).sum() == nan_rows
    assert (column_scales == NAN_SCALE).sum() == (32 if square else 1)
    values = dequantize(telens_ops, codes, scales, name)
    assert values[3, 32:64].isnan().all()
    assert not values[:, :32].isnan().any()
    assert not values[:, 64:].isnan().any()


@pytest.mark.parametrize("name", NAMES)
def test_special_values_of_blocks(telens_ops, name):
    x = torch.zeros(3, 32)
    x[0, 0] = math.inf
    x[1, :2] = torch.tensor([-0.0, 2.0**-149])
    codes, scales, *_ = quantize(telens_ops, x, name)
    values = dequantize(telens_ops, codes, scales, name)
    assert scales.flatten().tolist() == [254, 0, 0]  # 2^127; the smallest, 2^-127
    assert codes[0, 0] == LARGEST_CODE
    assert values[0, 0] == math.inf
    assert (values[0, 1:] == 0).all()
    assert math.copysign(1, values[1, 0].item()) == -1
    assert (codes[2] == 0).all()


@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_empty_tensors_have_empty_codes(telens_ops, name, shape):
    codes, scales, column_codes, _ = quantize(telens_ops, torch.zeros(shape), name)
    assert codes.shape == shape
    assert column_codes.shape == shape[::-1]
    assert dequantize(telens_ops, codes, scales, name).shape == shape


def test_another_format_is_refused(telens_ops):
    with pytest.raises(RuntimeError, match=r"format is 0; expected an MXFP6 format: E3M2 \(7\)"):
        telens_ops.quantize_mxfp6(torch.ones(32, 32), 0, 0, False, True, True)
    codes = torch.zeros(1, 32, dtype=torch.uint8)
    scales = torch.zeros(1, 1, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match=r"MXFP6E3M2 has E3M2 \(7\)"):
        telens_ops.dequantize_blocks(codes, scales, None, IDS["e2m3"], MODES["e3m2"], torch.float32)
    with pytest.raises(_C.UsageError, match="E4M3"):
        MXFP6BlockScaling(fp6_format=Format.E4M3)
    with pytest.raises(_C.UsageError, match="E3M2 is not an FP8 format; MXFP6BlockScaling has it"):
        MXFP8BlockScaling(fp8_format=Format.E3M2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_layer_multiplies_the_decoded_operands(name, dtype):
    torch.manual_seed(4)
    layer = te.Linear(64, 96, bias=False, params_dtype=dtype, device="cpu")
    x = wide(40, 64).clamp(-100, 100).to(dtype).requires_grad_()
    with te.autocast(enabled=True, recipe=MXFP6BlockScaling(fp6_format=FORMATS[name])):
        out = layer(x)
    gradient = wide(40, 96, seed=5).clamp(-100, 100).to(dtype)
    out.backward(gradient)

    def decoded(tensor, columnwise):
        matrix = tensor.detach().float().numpy()
        matrix = np.ascontiguousarray(matrix.T) if columnwise else matrix
        values = torch.from_numpy(mxfp6(matrix, ML_DTYPES[name])[0]).double()
        return values.t() if columnwise else values

    expected = {
        "out": (decoded(x, False), decoded(layer.weight, False).t(), out),
        "dgrad": (decoded(gradient, False), decoded(layer.weight, True), x.grad),
        "wgrad": (decoded(gradient, True).t(), decoded(x, True), layer.weight.grad),
    }
    unit = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}[dtype]
    for gemm, (a, b, found) in expected.items():
        exact = a @ b
        sums = a.abs() @ b.abs()
        bound = unit * exact.abs() + a.shape[1] * 2.0**-24 * sums + 1e-30
        assert ((found.double() - exact).abs() <= bound).all(), gemm


@pytest.mark.parametrize("name", NAMES)
def test_gemm_outside_of_fp32_is_exact(name):
    """Each scale alone is beyond FP32's range, so the expected product is computed in FP64."""
    x = torch.full((32, 32), 2.0**126)
    weight = torch.full((32, 32), 2.0**-126)
    layer = te.Linear(32, 32, bias=False, params_dtype=torch.float32, device="cpu")
    with torch.no_grad():
        layer.weight.copy_(weight)
    x[0] = torch.finfo(torch.float32).max
    with te.autocast(enabled=True, recipe=MXFP6BlockScaling(fp6_format=FORMATS[name])):
        out = layer(x)
    assert torch.equal(out[1:], torch.full((31, 32), 32.0))


@pytest.mark.parametrize("name", NAMES)
def test_stored_weights_and_quantizer_agree(name):
    recipe = MXFP6BlockScaling(fp6_format=FORMATS[name], enable_2d_quantization=True)
    with te.quantized_model_init(recipe=recipe):
        layer = te.Linear(64, 64, bias=False, params_dtype=torch.bfloat16, device="cpu")
    assert isinstance(layer.weight, te.MXFP6Tensor)
    x = wide(16, 64).bfloat16()
    quantized = te.MXFP6Quantizer(DTYPES[name])(x)
    expected, _ = mxfp6(x.float().numpy(), ML_DTYPES[name])
    np.testing.assert_array_equal(quantized.dequantize(torch.float32).numpy(), expected)


def the_layer():
    torch.manual_seed(1)
    return te.Linear(160, 96, bias=False, params_dtype=torch.float32, device="cpu", name="fc")


@pytest.mark.parametrize("running", ["mxfp8", *NAMES])
def test_statistics_measure_the_cast(tmp_path, running):
    """Statistics with the prefix mxfp6_ exist under any recipe; those of the running recipe have no
    prefix.
    """
    names = [f"mxfp6_{name}_{stat}" for name in NAMES for stat in ("underflows%", "mse")]
    own = [] if running == "mxfp8" else ["underflows%", "mse"]
    config = logging_of(["activation"], [*names, *own], "LogFp8TensorStats")
    recipe = MXFP8BlockScaling() if running == "mxfp8" else MXFP6BlockScaling(FORMATS[running])
    x = wide(64, 160).requires_grad_()
    scalars = Scalars()
    with debug.session(config, statistics_logger=scalars, log_dir=tmp_path):
        train(the_layer(), x, fp8=True, recipe=recipe)
    found = {name: value for name, value, _ in scalars.rows}
    matrix = x.detach().numpy()
    for prefix, name in [*((f"mxfp6_{n}_", n) for n in NAMES), *([("", running)] if own else [])]:
        values, _ = mxfp6(matrix, ML_DTYPES[name])
        error = values.astype(np.float64) - matrix
        vanished = 100 * np.count_nonzero((matrix != 0) & (values == 0)) / matrix.size
        assert found[f"fc_activation_{prefix}underflows%"] == pytest.approx(vanished, rel=1e-9)
        assert found[f"fc_activation_{prefix}mse"] == pytest.approx(
            np.mean(error * error), rel=1e-4
        )
    assert (
        found["fc_activation_mxfp6_e2m3_underflows%"]
        > found["fc_activation_mxfp6_e3m2_underflows%"]
    )


@pytest.mark.parametrize("name", NAMES)
def test_fake_quant_casts_to_mxfp6(tmp_path, name):
    config = config_of(
        "FakeQuant", quant_format=f"MXFP6{name.upper()}", gemms=["fprop"], tensors=["activation"]
    )
    layer = the_layer()
    x = wide(64, 160)
    with debug.session(config, log_dir=tmp_path), torch.no_grad():
        found = layer(x)
    values, _ = mxfp6(x.numpy(), ML_DTYPES[name])
    expected = torch.from_numpy(values) @ layer.weight.detach().t()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
