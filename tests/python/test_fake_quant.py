"""FakeQuant in real layers: every format against NumPy and ml_dtypes, which share no code with the
library, in all six tensors, over a training with and without a weight cache."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from block_references import (
    E4M3,
    E5M2,
    LARGEST,
    blocks_of_128,
    hadamard,
    mxfp8,
    nvfp4,
    rounded,
    without_hadamard,
)
from debug_helpers import section

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling
from telens.debug.features.api import TEConfigAPIMapper
from telens.debug.registry import api_method

FP8 = {"FP8E4M3": E4M3, "FP8E5M2": E5M2}
MXFP8 = {"MXFP8E4M3": E4M3, "MXFP8E5M2": E5M2}
BLOCKS = {"FP8BLOCKE4M3": E4M3, "FP8BLOCKE5M2": E5M2}
FORMATS = [*FP8, *MXFP8, *BLOCKS, "NVFP4"]

INPUTS = {"activation": ("fprop", "wgrad"), "weight": ("fprop", "dgrad")}
INPUTS["gradient"] = ("dgrad", "wgrad")
OUTPUTS = {"output": "fprop", "dgrad": "dgrad", "wgrad": "wgrad"}


def along_rows(name, x, square):
    """Quantizes and dequantizes an FP32 array in blocks along its rows; square: in a weight's
    blocks.
    """
    if name in FP8:
        scale = LARGEST[FP8[name]] / np.abs(x).max()
        return rounded(x * scale, FP8[name]) * (np.float32(1) / scale)
    if name in MXFP8:
        return mxfp8(x, MXFP8[name])[0]
    if name in BLOCKS:
        return blocks_of_128(x, BLOCKS[name], 128 if square else 1)[0]
    return nvfp4(x, 16 if square else 1)[0]


def is_transformed(name, tensor, gemm):
    return name == "NVFP4" and tensor in ("activation", "gradient") and gemm == "wgrad"


def reference(name, tensor, x, gemm):
    """Returns what the GEMM reads or gives for a tensor, in the dtype of x."""
    array, square = x.detach().float().numpy(), tensor == "weight"
    with np.errstate(all="ignore"):
        if gemm in (OUTPUTS.get(tensor), INPUTS.get(tensor, [None])[0]):
            values = along_rows(name, array, square)
        elif is_transformed(name, tensor, gemm):
            seen = hadamard(array, x.dtype)[1]
            values = without_hadamard(along_rows(name, np.ascontiguousarray(seen.T), False).T)
        else:
            values = along_rows(name, np.ascontiguousarray(array.T), square).T
    return torch.from_numpy(np.ascontiguousarray(values)).to(x.dtype)


def check(found, name, tensor, original, gemm):
    """Equal bit for bit, except for sums of the Hadamard transform, which are rounded once more."""
    expected = reference(name, tensor, original, gemm)
    tolerance = {"rtol": 0, "atol": 0}
    if is_transformed(name, tensor, gemm):
        largest = float(expected.abs().max())
        tolerance = {"rtol": torch.finfo(expected.dtype).eps, "atol": largest * 2**-22}
    torch.testing.assert_close(found, expected, **tolerance)


class Operands(TEConfigAPIMapper):
    """Keeps every tensor with what its first and its second GEMM read."""

    seen: ClassVar[list[tuple]] = []

    @api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        return True

    @api_method
    def inspect_tensor(
        self,
        config,
        layer_name,
        *,
        tensor_name,
        tensor,
        rowwise_quantized_tensor,
        columnwise_quantized_tensor,
        **kwargs,
    ):
        given = (tensor, rowwise_quantized_tensor, columnwise_quantized_tensor)
        copies = [None if each is None else each.detach().clone() for each in given]
        self.seen.append((tensor_name, *copies))


@pytest.fixture
def seen(register):
    register(Operands)
    Operands.seen = []
    return Operands.seen


def wide(rows, columns, dtype, seed=2):
    """Magnitudes from 1e-4 to 10 in every block, of rows and of columns."""
    generator = torch.Generator().manual_seed(seed)
    exponents = 5 * torch.rand(rows, columns, generator=generator) - 4
    return (torch.randn(rows, columns, generator=generator) * 10**exponents).to(dtype)


def a_layer(dtype, bias=True):
    torch.manual_seed(1)
    layer = te.Linear(160, 96, bias=bias, params_dtype=dtype, device="cpu", name="fc")
    with torch.no_grad():
        layer.weight.copy_(wide(96, 160, dtype, seed=3))
    return layer


def faking(name, tensors):
    fake = {"enabled": True, "gemms": ["fprop", "dgrad", "wgrad"], "quant_format": name}
    watch = {"enabled": True, "tensors": [*INPUTS, *OUTPUTS]}
    return section({"FakeQuant": fake | {"tensors": list(tensors)}, "Operands": watch})


def backward(layer, x, seed=4, **call):
    out = layer(x, **call)
    out.backward(wide(*out.shape, out.dtype, seed=seed))
    return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", FORMATS)
def test_each_gemm_gets_the_operands_of_the_reference(tmp_path, seen, name, dtype):
    x = wide(64, 160, dtype).requires_grad_()
    layer = a_layer(dtype)
    with debug.session(faking(name, INPUTS), log_dir=tmp_path):
        out = backward(layer, x)
    got = {tensor: copies for tensor, *copies in seen}
    operands = {}
    for tensor, gemms in INPUTS.items():
        original = got[tensor][0]
        for gemm, copy in zip(gemms, got[tensor][1:], strict=True):
            check(copy, name, tensor, original, gemm)
            assert not torch.equal(copy, original), (tensor, gemm)
            operands[gemm, tensor] = copy.double()
    # The GEMMs multiply these, in high precision.
    close = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 1e-2}
    exact = operands["fprop", "activation"] @ operands["fprop", "weight"].T + layer.bias.double()
    torch.testing.assert_close(out.double(), exact, **close)
    exact = operands["dgrad", "gradient"] @ operands["dgrad", "weight"]
    torch.testing.assert_close(x.grad.double(), exact, **close)
    exact = operands["wgrad", "gradient"].T @ operands["wgrad", "activation"]
    torch.testing.assert_close(layer.weight.grad.double(), exact, **close)


@pytest.mark.parametrize("name", FORMATS)
def test_outputs_are_quantized_along_their_rows(tmp_path, seen, name):
    x = wide(64, 160, torch.bfloat16).requires_grad_()
    layer = a_layer(torch.bfloat16)
    plain = {"output": backward(layer, x), "dgrad": x.grad, "wgrad": layer.weight.grad}
    x.grad, layer.weight.grad = None, None
    with debug.session(faking(name, OUTPUTS), log_dir=tmp_path):
        altered = {"output": backward(layer, x), "dgrad": x.grad, "wgrad": layer.weight.grad}
    for tensor, gemm in OUTPUTS.items():
        check(altered[tensor].detach(), name, tensor, plain[tensor], gemm)
        assert not torch.equal(altered[tensor], plain[tensor]), tensor
    got = {tensor: original for tensor, original, *_ in seen}
    assert all(torch.equal(got[tensor], altered[tensor]) for tensor in OUTPUTS)


@pytest.mark.parametrize("region", [{}, {"recipe": Float8CurrentScaling()}])
@pytest.mark.parametrize("name", FORMATS)
def test_cached_weight_is_reused_in_micro_batches(tmp_path, seen, name, region):
    layer = a_layer(torch.float32, bias=False)
    with debug.session(faking(name, INPUTS), log_dir=tmp_path):
        for step in range(3):
            weight = layer.weight.detach().clone()
            seen.clear()
            for micro_batch in range(2):
                x = wide(64, 160, torch.float32, seed=micro_batch).requires_grad_()
                with te.autocast(enabled=bool(region), **region):
                    backward(layer, x, is_first_microbatch=micro_batch == 0)
            kept = [copies for tensor, *copies in seen if tensor == "weight"]
            assert len(kept) == 2
            for _, first, second in kept:
                check(first, name, "weight", weight, "fprop")
                check(second, name, "weight", weight, "dgrad")
            with torch.no_grad():
                layer.weight.mul_(1.25).add_(0.01 * step)
            debug.step()


@pytest.mark.parametrize("name", FORMATS)
def test_a_model_trains_in_every_format(tmp_path, name):
    def losses(config):
        torch.manual_seed(5)
        model = torch.nn.Sequential(
            te.Linear(64, 128, name="fc1"), torch.nn.GELU(), te.Linear(128, 32, name="fc2")
        )
        x, target = torch.randn(64, 64), torch.randn(64, 32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        found = []
        with debug.session(config, log_dir=tmp_path):
            for _ in range(40):
                optimizer.zero_grad()
                loss = (model(x) - target).square().mean()
                loss.backward()
                optimizer.step()
                debug.step()
                found.append(loss.item())
        return found

    config = faking(name, [*INPUTS, *OUTPUTS])
    del config["section"]["transformer_engine"]["Operands"]
    plain, faked = losses({}), losses(config)
    assert plain[-1] < 0.5 * plain[0]
    assert faked[-1] < 0.7 * faked[0]
    assert faked != plain


@pytest.mark.parametrize("name", [*MXFP8, *BLOCKS, "NVFP4"])
def test_unsupported_block_shape_is_named(tmp_path, name):
    config = section(
        {
            "FakeQuant": {
                "enabled": True,
                "gemms": ["fprop"],
                "tensors": ["weight"],
                "quant_format": name,
            }
        }
    )
    layer = te.Linear(64, 24, device="cpu", name="fc")
    with debug.session(config, log_dir=tmp_path), pytest.raises(telens.ShapeError) as error:
        layer(torch.randn(3, 64))
    message = str(error.value)
    divisor = 32 if name in MXFP8 else 16
    assert "feature 'FakeQuant' of section 'section' in layer 'fc'" in message
    assert "the weight of fprop has shape [24, 64]" in message
    assert f"{name} needs its rows and columns divisible by {divisor}" in message


def test_formats_with_one_scale_take_any_shape(tmp_path):
    config = faking("FP8E4M3", [*INPUTS, *OUTPUTS])
    del config["section"]["transformer_engine"]["Operands"]
    layer = te.Linear(7, 5, device="cpu", name="fc")
    with debug.session(config, log_dir=tmp_path):
        assert torch.isfinite(backward(layer, torch.randn(3, 7, requires_grad=True))).all()
