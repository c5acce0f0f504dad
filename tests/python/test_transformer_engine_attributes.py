"""Attributes of tensors and quantizers that feature classes and tests of Transformer Engine
read.
"""

import pytest
import torch

import telens
import telens.pytorch as te

E4M3, E5M2 = te.DType.kFloat8E4M3, te.DType.kFloat8E5M2


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(128, 256)


def test_a_tensor_with_one_scale_shows_codes_scale_and_format(x):
    made = te.Float8Quantizer(torch.tensor([4.0]), torch.zeros(1), E5M2)(x)
    assert made._fp8_dtype == E5M2
    codes = made._data.view(torch.float8_e5m2).float()
    assert torch.equal(codes * made._scale_inv, made.dequantize())
    assert torch.equal(made._transpose, made._data.t())
    assert not hasattr(made, "_rowwise_data")
    made.update_usage(rowwise_usage=False)
    assert made._data is None
    assert made._scale_inv.item() == 0.25


@pytest.mark.parametrize(
    "quantizer",
    [
        te.MXFP8Quantizer(E4M3),
        te.Float8BlockQuantizer(E4M3, block_scaling_dim=1),
        te.NVFP4Quantizer(),
    ],
)
def test_block_scaled_tensor_shows_both_orientations(x, quantizer):
    made = quantizer(x)
    storage = made._storage
    assert made._fp8_dtype == quantizer.dtype
    for name in ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv"):
        assert torch.equal(getattr(made, f"_{name}"), getattr(storage, name)), name
    assert not hasattr(made, "_scale_inv")
    assert not hasattr(made, "_data")
    made.update_usage(columnwise_usage=False)
    assert made._columnwise_data is None


def test_shown_mxfp8_data_decodes_to_its_values(x):
    made = te.MXFP8Quantizer(E4M3)(x)
    codes = made._rowwise_data.view(torch.float8_e4m3fn).float().view(128, 8, 32)
    scales = torch.exp2(made._rowwise_scale_inv.float() - 127)
    assert torch.equal((codes * scales.unsqueeze(-1)).view(128, 256), made.dequantize())


def test_a_tensor_has_a_quantizer_that_makes_its_like(x):
    for quantizer in (te.MXFP8Quantizer(E5M2), te.Float8CurrentScalingQuantizer(E4M3)):
        again = quantizer(x)._get_quantizer()
        assert again.dtype == quantizer.dtype
        assert torch.equal(again(x).dequantize(), quantizer(x).dequantize())
    with te.fp8_model_init():
        weight = te.Linear(32, 32, device="cpu").weight
    assert weight._get_quantizer().dtype == E4M3


def test_a_quantizer_has_scale_amax_and_dtype(x):
    quantizer = te.Float8Quantizer(torch.tensor([2.0]), torch.zeros(1), E4M3)
    quantizer(x)
    assert (quantizer.scale.item(), quantizer.dtype) == (2.0, E4M3)
    assert quantizer.amax.item() == x.abs().max().item()


def test_scale_and_amax_of_another_dtype_are_converted(x):
    plain = te.Float8Quantizer(torch.ones(1), torch.zeros(1), E4M3)
    made = te.Float8Quantizer(
        scale=torch.tensor([1]), amax=torch.tensor([0], dtype=torch.float64), fp8_dtype=E4M3
    )
    by_position = te.Float8Quantizer(torch.tensor([1]), torch.tensor([0]), E4M3, columnwise=False)
    assert made.scale.dtype == by_position.scale.dtype == torch.float32
    assert torch.equal(made(x).dequantize(), plain(x).dequantize())
    assert made.amax == plain.amax
    assert torch.equal(by_position(x).dequantize(), plain(x).dequantize())


@pytest.mark.parametrize(
    "build",
    [
        lambda dtype: te.Float8Quantizer(torch.ones(1), torch.zeros(1), dtype),
        lambda dtype: te.Float8Quantizer(torch.ones(1), torch.zeros(1), fp8_dtype=dtype),
        lambda dtype: te.Float8CurrentScalingQuantizer(dtype, "cpu"),
        lambda dtype: te.MXFP8Quantizer(fp8_dtype=dtype),
        lambda dtype: te.Float8BlockQuantizer(dtype),
    ],
)
def test_a_quantizer_of_fp8_refuses_e2m1_by_name(build):
    build(E5M2)
    with pytest.raises(telens.UsageError, match=r"Quantizer: fp8_dtype must be .* not DType\.kFlo"):
        build(te.DType.kFloat4E2M1)


def test_copied_features_find_their_imports():
    from telens.pytorch.tensor import IdentityQuantizer, QuantizedTensor, Quantizer

    assert (QuantizedTensor, Quantizer) == (te.QuantizedTensor, te.Quantizer)
    assert IdentityQuantizer is te.IdentityQuantizer


def test_default_scale_is_kept_for_an_unusable_amax():
    from telens.pytorch.quantization import _default_sf_compute

    nothing = torch.tensor([0.0, torch.inf, torch.nan])
    scale = torch.full((5,), 7.0)
    amax = torch.cat([torch.tensor([2.0, 1e-38]), nothing])
    assert _default_sf_compute(amax, scale, 448.0, 1) is scale
    assert scale.tolist() == [112.0, torch.finfo(torch.float32).max, 7.0, 7.0, 7.0]
