"""Blocks of MXFP8, 128-block FP8 and NVFP4 against gfloat, ml_dtypes and Transformer Engine's
reference, which implement the same definitions.
"""

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import telens.pytorch as te
from telens import _C

E4M3, E5M2 = te.DType.kFloat8E4M3, te.DType.kFloat8E5M2
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
ML_DTYPES = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}


def sample(rows: int, columns: int, seed: int = 1) -> torch.Tensor:
    """Magnitudes over thirty powers of two, and zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    x *= torch.randn(rows, columns, generator=generator).mul(5).exp2()
    return x.where(torch.rand(rows, columns, generator=generator) > 0.1, 0).bfloat16()


def blocks_of(x: torch.Tensor, length: int) -> torch.Tensor:
    """[rows, columns] -> [rows, blocks, length], the last one padded with zeros."""
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % length))
    return padded.view(x.shape[0], padded.shape[1] // length, length)


def spread(scales: torch.Tensor, length: int, columns: int) -> torch.Tensor:
    return scales.repeat_interleave(length, 1)[:, :columns]


def unpack(packed: torch.Tensor, columns: int) -> torch.Tensor:
    return torch.stack([packed & 0xF, packed >> 4], -1).flatten(1)[:, :columns]


def e8m0(codes: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(
        codes.contiguous().numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    )


@pytest.mark.parametrize("fp8_dtype", [E4M3, E5M2])
def test_ocp_mxfp8_has_gfloats_scales_and_values(fp8_dtype):
    x = sample(20, 96)
    info = {
        E4M3: gfloat.formats.format_info_mxfp8_e4m3,
        E5M2: gfloat.formats.format_info_mxfp8_e5m2,
    }[fp8_dtype]
    quantizer = te.MXFP8Quantizer(fp8_dtype, scale_rounding=_C.ScaleRounding.floor)
    quantized = quantizer(x)
    scales = e8m0(quantized._storage.rowwise_scale_inv)
    values = quantized.dequantize(torch.float32)
    largest = LARGEST[fp8_dtype]
    for row in range(20):
        for block in range(3):
            elements = x[row, 32 * block : 32 * block + 32].double().numpy()
            scale = gfloat.compute_scale_amax(info.etype.emax, elements)
            assert scales[row, block] == scale
            # gfloat saturates only if told to.
            clipped = np.clip(elements, -largest * scale, largest * scale)
            expected = gfloat.quantize_block(info, clipped, lambda _emax, _values, s=scale: s)
            found = values[row, 32 * block : 32 * block + 32].double().numpy()
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("fp8_dtype", [E4M3, E5M2])
@pytest.mark.parametrize("columnwise", [False, True])
def test_mxfp8_scales_are_the_smallest_that_do_not_overflow(fp8_dtype, columnwise):
    x = sample(70, 90)
    storage = te.MXFP8Quantizer(fp8_dtype)(x)._storage
    matrix = x.t() if columnwise else x
    codes = storage.columnwise_data if columnwise else storage.rowwise_data
    scales = e8m0(storage.columnwise_scale_inv if columnwise else storage.rowwise_scale_inv)
    amax = blocks_of(matrix, 32).abs().amax(-1)
    assert (amax <= scales * LARGEST[fp8_dtype]).all()
    some = amax > 0
    assert (amax[some] > scales[some] / 2 * LARGEST[fp8_dtype]).all()
    scaled = (matrix.float() / spread(scales, 32, matrix.shape[1])).numpy()
    expected = scaled.astype(ML_DTYPES[fp8_dtype]).view(np.uint8)
    np.testing.assert_array_equal(codes.numpy(), expected)


@pytest.mark.parametrize("power_of_2", [True, False])
@pytest.mark.parametrize("dimension", [1, 2])
@pytest.mark.parametrize("columnwise", [False, True])
def test_128_blocks_have_transformer_engines_arithmetic(power_of_2, dimension, columnwise):
    x = sample(200, 300)
    quantizer = te.Float8BlockQuantizer(
        E4M3, force_pow_2_scales=power_of_2, block_scaling_dim=dimension
    )
    storage = quantizer(x)._storage
    matrix = (x.t() if columnwise else x).float()
    codes = storage.columnwise_data if columnwise else storage.rowwise_data
    found = storage.columnwise_scale_inv if columnwise else storage.rowwise_scale_inv
    amax = blocks_of(matrix, 128).abs().amax(-1)
    if dimension == 2:
        amax = blocks_of(amax.t().contiguous(), 128).amax(-1).t()
    # torch divides a number by a tensor by multiplying it with the reciprocal: two roundings.
    scale = torch.where(amax > 0, torch.tensor(448.0) / amax, 1.0)
    if power_of_2:
        scale = scale.view(torch.int32).bitwise_and(-(2**23)).view(torch.float32)
    assert torch.equal(found, 1 / scale)
    if dimension == 2:
        scale = scale.repeat_interleave(128, 0)[: matrix.shape[0]]
    scaled = (matrix * spread(scale, 128, matrix.shape[1])).clamp(-448, 448)
    expected = scaled.numpy().astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(codes.numpy(), expected)


def nvfp4_reference(x: torch.Tensor, amax: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Transformer Engine's NVFP4QuantizerRef for 1x16 tiles: codes, block scales, tensor scale.

    amax: of each block [rows, blocks].
    """
    factor = (torch.tensor(448.0 * 6.0) / amax.max()).clamp(max=torch.finfo(torch.float32).max)
    tensor_scale = 1 / factor
    block_scale = (amax * (factor * torch.tensor(6.0).reciprocal())).clamp(max=448)
    block_scale = block_scale.to(torch.float8_e4m3fn)
    inverse = (1 / (block_scale.float() * tensor_scale)).clamp(max=torch.finfo(torch.float32).max)
    scaled = (x.float() * spread(inverse, 16, x.shape[1])).clamp(-6, 6)
    codes = scaled.numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 0xF
    return torch.from_numpy(codes), block_scale.view(torch.uint8), tensor_scale


@pytest.mark.parametrize("two_dimensional", [False, True])
@pytest.mark.parametrize("columnwise", [False, True])
def test_nvfp4_has_transformer_engines_arithmetic(two_dimensional, columnwise):
    x = sample(80, 112)
    storage = te.NVFP4Quantizer(with_2d_quantization=two_dimensional)(x)._storage
    matrix = (x.t() if columnwise else x).contiguous()
    amax = blocks_of(matrix, 16).abs().amax(-1)
    if two_dimensional:
        amax = blocks_of(amax.t().contiguous(), 16).amax(-1).t()
        amax = amax.repeat_interleave(16, 0)
    codes, scales, tensor_scale = nvfp4_reference(matrix, amax)
    side = "columnwise" if columnwise else "rowwise"
    assert torch.equal(unpack(getattr(storage, f"{side}_data"), matrix.shape[1]), codes)
    assert torch.equal(getattr(storage, f"{side}_scale_inv"), scales)
    assert getattr(storage, f"{side}_tensor_scale").item() == tensor_scale.item()


def test_the_random_hadamard_transform_is_transformer_engines():
    x = torch.randn(64, 40, generator=torch.Generator().manual_seed(3)).bfloat16()
    signs = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]
    hadamard = torch.ones(1, 1)
    while hadamard.shape[0] < 16:
        hadamard = torch.cat(
            [torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)]
        )
    matrix = torch.diag(torch.tensor(signs, dtype=torch.float64)) @ hadamard.double() / 4
    expected = (x.double().t().reshape(-1, 16) @ matrix).view(40, 64).t()
    found = torch.ops.telens.hadamard_transform(x, 0xD7E8, False)
    # One rounding to BF16, and the roundings of FP32 sums.
    assert (found.double() - expected).abs().max() <= expected.abs().max() * 2**-8
    rotated = te.NVFP4Quantizer(with_rht=True)(x)._storage
    plain = te.NVFP4Quantizer()(found)._storage
    assert torch.equal(rotated.columnwise_data, plain.columnwise_data)
    assert torch.equal(rotated.columnwise_tensor_scale, plain.columnwise_tensor_scale)
    assert torch.equal(rotated.rowwise_data, te.NVFP4Quantizer()(x)._storage.rowwise_data)


QUANTIZERS = {
    "mxfp8": lambda: te.MXFP8Quantizer(E4M3),
    "mxfp8 squares": lambda: te.MXFP8Quantizer(E5M2, with_2d_quantization=True),
    "block 1": lambda: te.Float8BlockQuantizer(E4M3, block_scaling_dim=1),
    "block 2, FP32": lambda: te.Float8BlockQuantizer(E4M3, force_pow_2_scales=False),
    "nvfp4": lambda: te.NVFP4Quantizer(),
    "nvfp4 squares": lambda: te.NVFP4Quantizer(with_2d_quantization=True),
}
# The largest error in a tensor relative to its amax: half a unit in the last place of the largest
# value, 1/16 (E4M3) or 1/8 (E5M2). E2M1: half the distance of 4 and 6, which is 1/6; the E4M3 scale
# may be off by up to 1/16, and a sixth of that applies to the largest value.
LARGEST_ERRORS = {
    "mxfp8": 1 / 16,
    "mxfp8 squares": 1 / 8,
    "block 1": 1 / 16,
    "block 2, FP32": 1 / 16,
    "nvfp4": 1 / 5,
    "nvfp4 squares": 1 / 5,
}


@pytest.mark.parametrize("name", QUANTIZERS)
@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(0, 150),
    columns=st.integers(0, 150),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
)
def test_any_shape_is_quantized_with_ragged_ends(name, rows, columns, dtype):
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows + columns)).to(
        dtype
    )
    quantized = QUANTIZERS[name]()(x)
    values = quantized.dequantize()
    assert values.shape == x.shape
    assert values.dtype == dtype
    if x.numel() > 0:
        assert (values - x).abs().max() <= LARGEST_ERRORS[name] * x.abs().max()
    # The columnwise copy equals the rowwise copy of the transposed matrix.
    quantized.update_usage(rowwise_usage=False)
    transposed = QUANTIZERS[name]()(x.t()).dequantize()
    assert torch.equal(quantized.dequantize(), transposed.t())


def test_special_values_in_blocks():
    nan, inf = float("nan"), float("inf")
    blocks = {
        "zeros": [0.0, -0.0],
        "subnormal": [1e-40, -1e-39],
        "infinite": [inf, 1.0],
        "nan": [nan, 1.0],
    }
    x = torch.zeros(1, 32 * len(blocks))
    for index, values in enumerate(blocks.values()):
        x[0, 32 * index : 32 * index + 2] = torch.tensor(values)
    mx = te.MXFP8Quantizer(E4M3)(x)
    values = mx.dequantize()[0].view(len(blocks), 32)
    assert torch.equal(values[0], x[0, :32])
    assert values[0, 1].signbit()
    # With the smallest scale, 2^-127: 1e-40 x 2^127 = 0.01702, which rounds to E4M3's 9 x 2^-9 =
    # 0.0176.
    assert values[1, 0] == 9 * 2.0**-9 * 2.0**-127
    assert values[2, 0] == inf  # 448 x 2^127 is beyond FP32
    assert values[2, 1] == 0
    assert values[3, 0].isnan()
    assert values[3, 1] == 1  # a NaN takes no part in the scale
    fp4 = te.NVFP4Quantizer()(x.nan_to_num(nan, 6.0, -6.0))
    values = fp4.dequantize()[0].view(len(blocks), 32)
    assert values[3, :16].isnan().all()  # its block, not the next one
    assert torch.equal(values[3, 16:], torch.zeros(16))
    assert unpack(fp4._storage.rowwise_data, 128)[0, 96] == 7
    assert values[2, 0] == 6
    assert values[1].count_nonzero() == 0


def test_nothing_is_drawn_unless_rounding_is_by_chance():
    x = sample(32, 32)
    before = torch.get_rng_state()
    te.NVFP4Quantizer(with_rht=True)(x)
    assert torch.equal(torch.get_rng_state(), before)
    by_chance = te.NVFP4Quantizer(stochastic_rounding=True)
    first = by_chance(x)._storage
    assert not torch.equal(torch.get_rng_state(), before)
    second = by_chance(x)._storage
    assert not torch.equal(first.rowwise_data, second.rowwise_data)
    assert torch.equal(first.rowwise_scale_inv, second.rowwise_scale_inv)
    torch.set_rng_state(before)
    assert torch.equal(by_chance(x)._storage.rowwise_data, first.rowwise_data)
