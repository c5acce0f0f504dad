"""The formats and the FP8 operators against torch's and ml_dtypes' own formats.

Neither of them saturates, so inputs are clamped for them; NaN codes are compared only where the
libraries agree on them (ml_dtypes writes E5M2's NaN as 0x7e, torch and GPUs as 0x7f).
"""

import subprocess

import ml_dtypes
import numpy as np
import pytest
import torch

E4M3, E5M2 = 0, 1  # FormatId of core/formats/format_id.h
FP8 = {
    "e4m3": (E4M3, torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn, 448.0),
    "e5m2": (E5M2, torch.float8_e5m2, ml_dtypes.float8_e5m2, 57344.0),
}
SCALES = [1.0, 0.37, 149.25, 2.0**-12, 2.0**20, 1e-30, 1e30]


def every_16_bit_value(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def fp32_values() -> torch.Tensor:
    """All values of BF16 and FP16, ties between the codes of every FP8 format with their
    neighbours, and a million codes of FP32."""
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    ties = []
    for _, dtype, _, _ in FP8.values():
        values = codes.view(dtype).double()
        values = values[values.isfinite()].sort().values
        ties.append(((values[1:] + values[:-1]) / 2).float())
    ties = torch.cat(ties)
    near = [ties.nextafter(torch.full_like(ties, end)) for end in (-torch.inf, torch.inf)]
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (2**20,), generator=generator, dtype=torch.int64)
    return torch.cat(
        [
            every_16_bit_value(torch.bfloat16).float(),
            every_16_bit_value(torch.float16).float(),
            ties,
            *near,
            bits.to(torch.int32).view(torch.float32),
        ]
    )


def inputs(dtype: torch.dtype) -> torch.Tensor:
    return fp32_values() if dtype == torch.float32 else every_16_bit_value(dtype)


def integers(tensor: torch.Tensor) -> torch.Tensor:
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.contiguous().view(widths[tensor.element_size()])


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor, of: torch.Tensor) -> None:
    """Equal bits; a failure shows the first element that differs."""
    different = (integers(actual) != integers(expected)).flatten().nonzero()
    if different.numel() == 0:
        return
    first = int(different[0])
    mask = 2 ** (8 * actual.element_size()) - 1
    got, want = (int(integers(t).flatten()[first]) & mask for t in (actual, expected))
    raise AssertionError(
        f"{different.numel()} of {actual.numel()} differ; the first at index {first}: "
        f"expected {want:#x}, got {got:#x} for {of.flatten()[first].item()!r}"
    )


def encode(build_folder, values: np.ndarray, name: str, mode: str, bits: type) -> np.ndarray:
    program = build_folder / "tests/format_codes"
    run = subprocess.run(
        [program, name, mode], input=values.tobytes(), stdout=subprocess.PIPE, check=True
    )
    return np.frombuffer(run.stdout, bits)


@pytest.mark.parametrize("name", FP8)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_quantize_gives_the_codes_of_torch_and_ml_dtypes(telens_ops, name, dtype):
    format_id, torch_dtype, ml_dtype, largest = FP8[name]
    x = inputs(dtype)
    for scale in SCALES:
        codes = telens_ops.quantize_fp8(x, torch.tensor([scale]), None, format_id)
        clamped = (x.float() * torch.tensor(scale)).clamp(-largest, largest)  # NaN stays NaN
        assert_same_bits(codes, clamped.to(torch_dtype).view(torch.uint8), x)
        number = ~x.isnan()
        of_ml_dtypes = torch.from_numpy(clamped.numpy().astype(ml_dtype).view(np.uint8))
        assert_same_bits(codes[number], of_ml_dtypes[number], x[number])


@pytest.mark.parametrize("name", FP8)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_decode_gives_the_values_of_torch_and_ml_dtypes(telens_ops, name, dtype):
    format_id, torch_dtype, ml_dtype, _ = FP8[name]
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    values = telens_ops.decode_fp8(codes, format_id, dtype).float()
    of_torch = codes.view(torch_dtype).float()
    number = ~of_torch.isnan()
    assert torch.equal(values.isnan(), of_torch.isnan())
    assert_same_bits(values[number], of_torch[number], codes[number])
    of_ml_dtypes = torch.from_numpy(codes.numpy().view(ml_dtype).astype(np.float32))
    assert_same_bits(values[number], of_ml_dtypes[number], codes[number])


@pytest.mark.parametrize("name", FP8)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_dequantize_is_a_product_in_fp32_rounded_to_the_dtype(telens_ops, name, dtype):
    format_id, torch_dtype, _, _ = FP8[name]
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    for scale in SCALES:
        scale_inv = torch.tensor([scale])
        values = telens_ops.dequantize_fp8(codes, scale_inv, format_id, dtype)
        expected = (codes.view(torch_dtype).float() * scale_inv).to(dtype)
        number = ~expected.isnan()
        assert torch.equal(values.isnan(), ~number)
        assert_same_bits(values[number], expected[number], codes[number])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_amax_is_the_largest_magnitude_and_keeps_nan(telens_ops, dtype):
    x = inputs(dtype)
    assert telens_ops.amax(x).isnan()
    finite = x[x.isfinite()]
    assert telens_ops.amax(finite).item() == finite.abs().max().item()
    assert telens_ops.amax(x[~x.isnan()]).item() == torch.inf
    assert telens_ops.amax(x[:0]).item() == 0.0


@pytest.mark.parametrize(
    ("name", "mode", "ml_dtype"),
    [
        ("e4m3", "non_saturating", ml_dtypes.float8_e4m3fn),
        ("e5m2", "non_saturating", ml_dtypes.float8_e5m2),
        ("e2m1", "saturating", ml_dtypes.float4_e2m1fn),
        ("bf16", "non_saturating", ml_dtypes.bfloat16),
        ("fp16", "non_saturating", np.float16),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_encode_gives_the_codes_of_ml_dtypes(build_folder, name, mode, ml_dtype):
    values = fp32_values().numpy()
    values = values[~np.isnan(values)]
    bits = np.uint16 if np.dtype(ml_dtype).itemsize == 2 else np.uint8
    codes = encode(build_folder, values, name, mode, bits)
    expected = values.astype(ml_dtype).view(bits)
    assert_same_bits(torch.tensor(codes), torch.tensor(expected), torch.tensor(values))


def test_nan_encodes_as_the_largest_e2m1_value(build_folder):
    nans = np.array([np.nan, -np.nan], np.float32)
    assert encode(build_folder, nans, "e2m1", "saturating", np.uint8).tolist() == [7, 7]


@pytest.mark.parametrize("library", ["torch", "ml_dtypes"])
def test_nearest_block_scales_match_torch_and_ml_dtypes(build_folder, library):
    values = fp32_values().numpy()
    # FP32 subnormals: both round 2^-127 < x < 1.5 * 2^-127 to 2^-126, which is not the nearer one.
    values = values[values >= 2.0**-126]
    codes = encode(build_folder, values, "e8m0", "nearest", np.uint8)
    if library == "torch":
        expected = torch.from_numpy(values).to(torch.float8_e8m0fnu).view(torch.uint8)
    else:
        expected = torch.from_numpy(values.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8))
    assert_same_bits(torch.tensor(codes), expected, torch.from_numpy(values))


def test_block_scales_rounded_up_and_down_enclose_the_value(build_folder):
    values = fp32_values().numpy()
    values = values[(values > 2.0**-127) & (values <= 2.0**127)]
    up, down = (
        np.ldexp(1.0, encode(build_folder, values, "e8m0", mode, np.uint8).astype(int) - 127)
        for mode in ("up", "floor")
    )
    assert (down <= values).all()
    assert (values <= up).all()
    assert (up <= 2 * down).all()
    assert ((up == down) == (values == down)).all()


def test_operators_trace_under_fake_tensors(telens_ops):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(6, 4, dtype=torch.bfloat16)
        codes = telens_ops.quantize_fp8(x.t(), torch.empty(1), torch.empty(1), E4M3)
        assert (codes.shape, codes.stride(), codes.dtype) == ((4, 6), (6, 1), torch.uint8)
        values = telens_ops.decode_fp8(codes.t(), E4M3, torch.bfloat16)
        assert (values.shape, values.stride()) == ((6, 4), (1, 6))
