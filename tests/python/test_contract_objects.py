"""Objects that feature classes and scripts use have Transformer Engine's names and arguments."""

import importlib

import pytest
import torch

import telens
import telens.pytorch as te
from telens.common.recipe import Format
from telens.pytorch.tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8Tensor,
    QuantizedTensor,
    Quantizer,
)

E4M3 = te.DType.kFloat8E4M3


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(32, 64, generator=torch.Generator().manual_seed(1))


def test_the_low_precision_dtypes_have_transformer_engines_names():
    assert {"kFloat8E4M3", "kFloat8E5M2", "kFloat4E2M1"} <= set(te.DType.__members__)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("float8_tensor", ["Float8CurrentScalingQuantizer", "Float8Quantizer", "Float8Tensor"]),
        ("float8_blockwise_tensor", ["Float8BlockQuantizer", "Float8BlockwiseQTensor"]),
        ("mxfp8_tensor", ["MXFP8Quantizer", "MXFP8Tensor"]),
        ("nvfp4_tensor", ["NVFP4Quantizer", "NVFP4Tensor"]),
        ("quantized_tensor", ["QuantizedTensor", "Quantizer"]),
    ],
)
def test_tensor_classes_have_te_import_paths(module, names):
    imported = importlib.import_module(f"telens.pytorch.tensor.{module}")
    assert [getattr(imported, name) for name in names] == [getattr(te, name) for name in names]


def test_formats_have_their_largest_values():
    assert (Format.E4M3.value.max_fwd, Format.E4M3.value.max_bwd) == (448, 448)
    assert (Format.E5M2.value.max_fwd, Format.E5M2.value.max_bwd) == (57344, 57344)
    assert (Format.HYBRID.value.max_fwd, Format.HYBRID.value.max_bwd) == (448, 57344)


def test_quantizers_take_the_arguments_of_transformer_engine(x):
    scale, amax = torch.tensor([2.0]), torch.zeros(1)
    by_name = Float8Quantizer(
        scale=scale, amax=amax, fp8_dtype=E4M3, rowwise=True, columnwise=False
    )
    by_position = Float8Quantizer(scale, amax, E4M3)
    assert torch.equal(by_name(x).dequantize(), by_position(x).dequantize())
    assert (by_name.rowwise_usage, by_name.columnwise_usage) == (True, False)
    current = Float8CurrentScalingQuantizer(
        fp8_dtype=E4M3,
        device=torch.device("cpu"),
        rowwise=True,
        columnwise=True,
        with_amax_reduction=False,
        amax_reduction_group=None,
        force_pow_2_scales=True,
        amax_epsilon=0.0,
    )
    scale_inv = current(x)._storage.rowwise_scale_inv.item()
    assert torch.frexp(torch.tensor(scale_inv)).mantissa.item() == 0.5  # a power of two
    epsilon = Float8CurrentScalingQuantizer(E4M3, "cpu", amax_epsilon=1e3)
    assert epsilon(x)._storage.rowwise_scale_inv.item() == pytest.approx(1e3 / 448)
    assert isinstance(current, Quantizer)
    assert current.dtype == E4M3


def test_a_quantizer_is_called_and_has_the_methods_of_the_contract(x):
    quantizer = Float8CurrentScalingQuantizer(E4M3, "cpu")
    called, quantized = quantizer(x), quantizer.quantize(x)
    assert isinstance(called, QuantizedTensor)
    assert torch.equal(called.dequantize(), quantized.dequantize())
    empty = quantizer.make_empty((32, 64), dtype=torch.bfloat16)
    assert (empty.shape, empty.dtype) == ((32, 64), torch.bfloat16)
    assert quantizer.update_quantized(x, called) is called
    copied = quantizer.copy()
    copied.set_usage(rowwise=True, columnwise=False)
    assert (quantizer.columnwise_usage, copied.columnwise_usage) == (True, False)
    amax = torch.zeros(1)
    Float8Quantizer(torch.ones(1), amax, E4M3).calibrate(x)
    assert amax.item() == x.abs().max().item()


def test_a_quantized_tensor_is_a_tensor_of_the_high_precision_dtype(x):
    quantized = Float8CurrentScalingQuantizer(E4M3, "cpu")(x.bfloat16())
    assert isinstance(quantized, torch.Tensor)
    assert isinstance(quantized, Float8Tensor)
    assert quantized.dtype == torch.bfloat16
    assert quantized.shape == x.shape
    values = quantized.dequantize()
    assert type(values) is torch.Tensor
    assert values.dtype == torch.bfloat16
    exact = quantized.dequantize(dtype=torch.float32)  # rounded to FP32 alone
    assert not torch.equal(exact, values.float())
    assert torch.equal(exact.bfloat16(), values)
    for method, dtype in (("float", torch.float32), ("bfloat16", torch.bfloat16)):
        assert getattr(quantized, method)().dtype == dtype
    assert quantized.half().dtype == torch.float16
    assert torch.equal(quantized.detach().dequantize(), values)
    quantized.quantize_(2 * x)
    assert torch.allclose(quantized.float(), 2 * x, rtol=2**-4, atol=2**-6)
    quantized.update_usage(rowwise_usage=True, columnwise_usage=False)
    with pytest.raises(telens.UsageError, match="orientation"):
        quantized.update_usage(columnwise_usage=True)


def test_the_global_state_manager_can_be_reset_and_asked():
    from telens.pytorch.fp8 import FP8GlobalStateManager

    FP8GlobalStateManager.reset()
    assert not FP8GlobalStateManager.is_fp8_enabled()
    with te.fp8_autocast(enabled=True):
        assert FP8GlobalStateManager.is_fp8_enabled()
        assert not FP8GlobalStateManager.is_fp8_calibration()


BLOCK_QUANTIZERS = {
    "mxfp8": (
        lambda: te.MXFP8Quantizer(
            fp8_dtype=E4M3, rowwise=True, columnwise=True, with_2d_quantization=False
        ),
        "MXFP8Tensor",
        2**-3,
    ),
    "fp8_block": (
        lambda: te.Float8BlockQuantizer(
            fp8_dtype=E4M3,
            rowwise=True,
            columnwise=True,
            amax_epsilon=0.0,
            force_pow_2_scales=True,
            block_scaling_dim=2,
        ),
        "Float8BlockwiseQTensor",
        2**-3,
    ),
    "nvfp4": (
        lambda: te.NVFP4Quantizer(
            fp4_dtype=te.DType.kFloat4E2M1,
            rowwise=True,
            columnwise=True,
            with_rht=False,
            with_2d_quantization=False,
            stochastic_rounding=False,
        ),
        "NVFP4Tensor",
        0.25,
    ),
}


@pytest.mark.parametrize("name", BLOCK_QUANTIZERS)
def test_block_quantizers_accept_te_arguments(name):
    make, kind, error = BLOCK_QUANTIZERS[name]
    # Blocks of very different size: one scale for all would make the small ones zero.
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(2))
    x[128:] *= 2.0**-8
    quantized = make()(x)
    assert type(quantized).__name__ == kind
    assert isinstance(quantized, getattr(te, kind))
    assert quantized.dtype == torch.float32
    off = (quantized.dequantize() - x).abs()
    for half in (slice(0, 128), slice(128, 256)):
        assert off[half].max() < error * x[half].abs().max(), name
    assert off.max() > 0
