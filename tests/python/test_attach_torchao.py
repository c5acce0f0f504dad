"""telens.watch on torchao's low-precision layers: codes and scales of torchao's casts.

Needs torchao in build/clients (make test-clients).
"""

import sys

import pytest
import torch
from attach_helpers import amax, recorded
from conftest import PROJECT_ROOT
from torch import nn

import telens

CLIENTS = PROJECT_ROOT / "build/clients"
if not (CLIENTS / "torchao").is_dir():
    pytest.skip("torchao is not in build/clients (make test-clients)", allow_module_level=True)
sys.path.append(str(CLIENTS))

from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: E402
from torchao.float8.config import CastConfig, ScalingType  # noqa: E402
from torchao.prototype.moe_training.mxfp8_linear import MXFP8Linear, MXTensor  # noqa: E402
from torchao.prototype.moe_training.nvfp4_training import (  # noqa: E402
    nvfp4_linear,
    nvfp4_training,
)
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, nvfp4_quantize  # noqa: E402
from torchao.prototype.mx_formats.utils import from_blocked, to_blocked  # noqa: E402
from torchao.prototype.qat import nvfp4 as nvfp4_qat  # noqa: E402
from torchao.quantization.quantize_.common.kernel_preference import (  # noqa: E402
    KernelPreference,
)

HIGH_PRECISION = ["cur_amax", "numel"]
LOW_PRECISION = ["underflows%", "mse", "scale_inv_min", "scale_inv_max"]
INPUTS = ["activation", "weight", "gradient"]
CONFIG = {
    "section": {
        "enabled": True,
        "layers": {"layer_types": ["all"]},
        "transformer_engine": {
            "LogTensorStats": {
                "enabled": True,
                "stats": HIGH_PRECISION,
                "freq": 1,
                "tensors": ["output", "dgrad", "wgrad", *INPUTS],
            },
            "LogFp8TensorStats": {
                "enabled": True,
                "stats": LOW_PRECISION,
                "freq": 1,
                "tensors": INPUTS,
            },
        },
    }
}


def float8(recipe):
    config = Float8LinearConfig.from_recipe_name(recipe)
    object.__setattr__(config, "emulate", True)
    return lambda model: convert_to_float8_training(model, config=config)


def mxfp8(model):
    for name, module in [*model.named_children()]:
        linear = MXFP8Linear(
            module.in_features,
            module.out_features,
            bias=module.bias is not None,
            kernel_preference=KernelPreference.EMULATED,
            dtype=module.weight.dtype,
        )
        linear.load_state_dict(module.state_dict())
        setattr(model, name, linear)
    return model


CONVERSIONS = {
    "tensorwise": float8("tensorwise"),
    "rowwise": float8("rowwise"),
    "rowwise_with_gw_hp": float8("rowwise_with_gw_hp"),
    "mxfp8": mxfp8,
}


def new_model(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 32)).to(torch.bfloat16)
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(torch.exp2(torch.randint(-12, 4, each.shape).to(each.dtype)))
    return CONVERSIONS[kind](model)


def train(model, steps=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        x = torch.randn(2, 32, 64, generator=generator)
        x = (x * torch.exp2(torch.randint(-20, 8, x.shape, generator=generator))).bfloat16()
        loss = model(x).float().square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


class Casts:
    """Keeps (high precision, quantized) of all casts that torchao computes."""

    def __init__(self, monkeypatch):
        from torchao.float8 import float8_scaling_utils as module
        from torchao.prototype.mx_formats import mx_tensor

        self.float8, self.mx = [], []
        cast, to_mx = module.hp_tensor_and_scale_to_float8, mx_tensor.to_mx

        def keep_float8(values, *args, **kwargs):
            result = cast(values, *args, **kwargs)
            self.float8.append((values.detach().clone(), result))
            return result

        def keep_mx(values, *args, **kwargs):
            scale, codes = to_mx(values, *args, **kwargs)
            self.mx.append((values.detach().clone(), scale, codes))
            return scale, codes

        monkeypatch.setattr(module, "hp_tensor_and_scale_to_float8", keep_float8)
        monkeypatch.setattr(mx_tensor, "to_mx", keep_mx)

    def expected(self, kind):
        """The statistics of the casts in the order of the calls: {(index): {statistic: value}}."""
        found = []
        for values, *rest in self.mx if kind == "mxfp8" else self.float8:
            if kind == "mxfp8":
                scale_inv = torch.exp2(rest[0].view(torch.uint8).double() - 127)
                scale_inv = scale_inv.repeat_interleave(32, -1)
                decoded = rest[1].double() * scale_inv
            else:
                scale_inv = 1 / rest[0]._scale.double()
                decoded = rest[0]._data.double() * scale_inv
            exact = values.double()
            lost = (decoded == 0) & (exact != 0)
            found.append(
                {
                    "underflows%": 100 * lost.double().mean().item(),
                    "mse": (decoded - exact).square().mean().item(),
                    "scale_inv_min": scale_inv.min().item(),
                    "scale_inv_max": scale_inv.max().item(),
                }
            )
        return found


# The casts of a step in torchao's order: the forward of both layers, then the backward.
ORDER = [
    ("0", "activation"),
    ("0", "weight"),
    ("1", "activation"),
    ("1", "weight"),
    ("1", "gradient"),
]


@pytest.mark.parametrize("kind", CONVERSIONS)
def test_watching_changes_no_bit(tmp_path, kind):
    plain, watched = new_model(kind), new_model(kind)
    losses = train(plain)
    with telens.watch(watched, CONFIG, tmp_path) as watch:
        assert watch.layers == ["0", "1"]
        assert train(watched) == losses
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", CONVERSIONS)
def test_statistics_are_those_of_torchaos_casts(tmp_path, kind, monkeypatch):
    model = new_model(kind)
    casts = Casts(monkeypatch)
    with telens.watch(model, CONFIG, tmp_path):
        train(model, steps=1)
    expected = casts.expected(kind)
    rows = {statistic: recorded(tmp_path, statistic) for statistic in LOW_PRECISION}
    for (layer, tensor), values in zip(ORDER, expected, strict=False):
        for statistic, value in values.items():
            found = rows[statistic][layer, tensor, 0]
            assert found == pytest.approx(value, rel=1e-5), (layer, tensor, statistic)
    assert any(values["underflows%"] > 0 for values in expected)
    assert recorded(tmp_path, "numel")["1", "gradient", 0] == 2 * 32 * 32


def test_a_gradient_in_high_precision_is_still_shown(tmp_path):
    off = CastConfig(scaling_type=ScalingType.DISABLED)
    config = Float8LinearConfig(
        cast_config_input_for_grad_weight=off,
        cast_config_grad_output=off,
        cast_config_weight_for_grad_input=off,
        cast_config_grad_output_for_grad_weight=off,
        emulate=True,
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).to(torch.bfloat16)
    convert_to_float8_training(model, config=config)
    gradients = []
    model[0].register_forward_hook(
        lambda module, args, output: output.register_hook(gradients.append) and None
    )
    with telens.watch(model, CONFIG, tmp_path):
        model(torch.randn(4, 32, dtype=torch.bfloat16)).square().mean().backward()
        telens.step()
    assert recorded(tmp_path, "cur_amax")["0", "gradient", 0] == amax(gradients[0])
    assert ("0", "activation", 0) in recorded(tmp_path, "mse")


def test_torchaos_functions_are_restored_after_stop(tmp_path):
    from torchao.float8 import float8_linear

    kept = float8_linear.hp_tensor_to_float8_dynamic, MXTensor.__dict__["to_mx"]
    for kind in ("tensorwise", "mxfp8"):
        with telens.watch(new_model(kind), CONFIG, tmp_path / kind):
            pass
    assert float8_linear.hp_tensor_to_float8_dynamic is kept[0]
    assert MXTensor.__dict__["to_mx"] is kept[1]


NVFP4_CONFIG = {
    "section": {
        "enabled": True,
        "layers": {"layer_types": ["all"]},
        "transformer_engine": {
            "LogNvfp4TensorStats": {
                "enabled": True,
                "stats": ["underflows%", "mse"],
                "freq": 1,
                "tensors": INPUTS,
            },
        },
    }
}


def nvfp4_errors(values, quantized):
    """Returns the statistics of a cast to NVFP4, from its values after the cast."""
    exact, decoded = values.detach().double(), quantized.double()
    return {
        "nvfp4_underflows%": 100 * ((decoded == 0) & (exact != 0)).double().mean().item(),
        "nvfp4_mse": (decoded - exact).square().mean().item(),
    }


def check_nvfp4_rows(folder, expected):
    """Compares the rows of the first iteration with {(layer, tensor): statistics}."""
    for (layer, tensor), values in expected.items():
        for statistic, value in values.items():
            found = recorded(folder, statistic)[layer, tensor, 0]
            assert found == pytest.approx(value, rel=1e-4), (layer, tensor, statistic)


def nvfp4_model(new_linear):
    torch.manual_seed(0)
    model = nn.Sequential(new_linear(128, 256), new_linear(256, 128)).to(torch.bfloat16)
    with torch.no_grad():
        for layer in model:
            layer.weight.mul_(torch.exp2(torch.randint(-9, 4, layer.weight.shape)))
    return model


def train_nvfp4(model):
    x = torch.randn(128, 128) * torch.exp2(torch.randint(-12, 4, (128, 128)))
    model(x.bfloat16()).float().square().mean().backward()


@pytest.mark.parametrize("swizzled", [False, True], ids=["plain", "swizzled"])
@pytest.mark.parametrize("tensor_scale", [False, True], ids=["blocks", "two_levels"])
def test_fake_quantized_nvfp4_is_read_from_the_casts(tmp_path, monkeypatch, swizzled, tensor_scale):
    casts = []
    cast = NVFP4Tensor.to_nvfp4

    def keep(values, *args, **kwargs):
        casts.append((values, cast(values, *args, **kwargs)))
        return casts[-1][1]

    def multiply(a, b, op, bias):
        return a.dequantize(torch.bfloat16) @ b.dequantize(torch.bfloat16)

    monkeypatch.setattr(NVFP4Tensor, "to_nvfp4", staticmethod(keep))
    monkeypatch.setattr(nvfp4_qat, "_addmm_nvfp4_dispatch", multiply)  # needs a Blackwell GPU
    config = nvfp4_qat.NVFP4FakeQuantizeConfig(tensor_scale, swizzled)
    model = nvfp4_model(
        lambda a, b: nvfp4_qat.NVFP4FakeQuantizedLinear(
            a, b, activation_config=config, weight_config=config
        )
    )
    with telens.watch(model, NVFP4_CONFIG, tmp_path):
        train_nvfp4(model)
        telens.step()
    expected = [nvfp4_errors(values, q.dequantize(torch.float32)) for values, q in casts]
    assert len(expected) == 4
    check_nvfp4_rows(tmp_path, dict(zip(ORDER, expected, strict=False)))
    assert any(values["nvfp4_underflows%"] > 0 for values in expected)


class NVFP4Kernels:
    """Replaces torchao's kernels for Blackwell GPUs by its reference on the CPU."""

    def __init__(self, monkeypatch):
        self.errors = []
        for name in ("triton_rht_amax", "triton_rht_quantize_row_col", "triton_weight_quantize_2d"):
            monkeypatch.setattr(nvfp4_linear, name, getattr(self, name))
        monkeypatch.setattr(torch.nn.functional, "scaled_mm", self.scaled_mm)

    def quantize(self, values, amax):
        """Returns codes, swizzled scales, and the error of the cast."""
        rows, columns = values.shape
        tensor_scale = amax / (448 * 6)
        scale, codes = nvfp4_quantize(values, per_tensor_scale=tensor_scale)
        tensor = NVFP4Tensor(
            codes, scale.view(rows, columns // 16), 16, torch.float32, tensor_scale
        )
        swizzled = to_blocked(scale.view(rows, columns // 16))
        shape = rows // 128, columns // 64, 32, 16
        return codes, swizzled.view(shape), nvfp4_errors(values, tensor.dequantize(torch.float32))

    def triton_rht_amax(self, values, sign_vector):
        # Larger than the amax, so that the tensor scale is not the default.
        return (5 * values.abs().max().float(),) * 2

    def triton_rht_quantize_row_col(self, values, *, col_global_amax, row_global_amax, **_):
        codes, scale, errors = self.quantize(values, row_global_amax)
        self.errors.append(errors)
        return *self.quantize(values.t().contiguous(), col_global_amax)[:2], codes, scale

    def triton_weight_quantize_2d(self, values, amax):
        codes, scale, errors = self.quantize(values.detach(), amax)
        self.errors.append(errors)
        return codes, scale, *self.quantize(values.detach().t().contiguous(), amax)[:2]

    def scaled_mm(self, a, b, *, scale_a, scale_b, output_dtype, **_):
        def decoded(codes, scales):
            codes = codes.view(torch.uint8)
            rows, blocks = codes.size(0), codes.size(1) // 8
            scale = from_blocked(scales[0].flatten(), rows, blocks)
            tensor = NVFP4Tensor(codes, scale.contiguous(), 16, torch.float32, scales[1])
            return tensor.dequantize(torch.float32)

        return (decoded(a, scale_a) @ decoded(b.t(), scale_b).t()).to(output_dtype)


def test_nvfp4_linear_is_read_from_the_casts(tmp_path, monkeypatch):
    kernels = NVFP4Kernels(monkeypatch)
    model = nvfp4_model(nvfp4_training.NVFP4Linear)
    with telens.watch(model, NVFP4_CONFIG, tmp_path):
        train_nvfp4(model)
        telens.step()
    backward = [("1", "gradient"), ("0", "gradient")]
    expected = dict(zip([*ORDER[:4], *backward], kernels.errors, strict=True))
    check_nvfp4_rows(tmp_path, expected)
    assert nvfp4_linear.triton_rht_quantize_row_col == kernels.triton_rht_quantize_row_col
