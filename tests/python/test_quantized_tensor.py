"""Quantizers and quantized tensors in Python, and weights that are stored in FP8."""

import copy
import io

import pytest
import torch

import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling, Format


def e4m3_reference(x: torch.Tensor, scale: float) -> torch.Tensor:
    return (x.float() * scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() / scale


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(32, 64)


def test_a_known_scale_is_multiplied_and_the_amax_is_collected(x):
    scale, amax = torch.tensor([4.0]), torch.zeros(1)
    quantizer = te.Float8Quantizer(scale, amax, te.DType.kFloat8E4M3)
    assert torch.equal(quantizer(x).dequantize(), e4m3_reference(x, 4.0))
    assert amax.item() == x.abs().max().item()


def test_current_scaling_takes_the_tensors_own_amax(x):
    quantizer = te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3, "cpu")
    quantized = quantizer(x)
    assert quantized.dtype == x.dtype
    assert quantized.shape == x.shape
    error = (quantized.dequantize() - x).abs().max() / x.abs().max()
    assert 0 < error < 2**-4
    assert quantized.dequantize().abs().max() == pytest.approx(x.abs().max().item(), rel=1e-6)


def test_usage_decides_the_orientations(x):
    quantizer = te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3)
    quantizer.set_usage(columnwise=False)
    assert quantizer(x)._storage.columnwise_data is None
    quantizer.set_usage(rowwise=False, columnwise=True)
    quantized = quantizer(x)
    assert quantized._storage.rowwise_data is None
    assert quantized._storage.columnwise_data.shape == (64, 32)
    quantizer.set_usage(rowwise=True)
    assert torch.equal(quantizer(x).dequantize(), quantized.dequantize())


def test_update_quantized_writes_into_the_same_codes(x):
    quantizer = te.Float8CurrentScalingQuantizer(te.DType.kFloat8E5M2)
    target = quantizer.make_empty((32, 64))
    codes = target._storage.rowwise_data.data_ptr()
    assert quantizer.update_quantized(x, target) is target
    assert torch.equal(target.dequantize(), quantizer(x).dequantize())
    assert target._storage.rowwise_data.data_ptr() == codes


def test_operations_see_the_dequantized_values(x):
    quantized = te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3)(x)
    values = quantized.dequantize()
    assert torch.equal(quantized + 1, values + 1)
    assert torch.equal(quantized @ x.t(), values @ x.t())
    assert quantized.float().dtype == torch.float32
    assert quantized.bfloat16().dtype == torch.bfloat16
    assert quantized.half().dtype == torch.float16
    assert type(quantized.detach()) is te.Float8Tensor


def test_operations_in_place_quantize_their_result(x):
    quantized = te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3)(x)
    twice = quantized.dequantize() * 2
    quantized.mul_(2)
    assert type(quantized) is te.Float8Tensor
    assert torch.equal(quantized.dequantize(), twice)
    quantized.copy_(torch.ones_like(x))
    assert torch.equal(quantized.dequantize(), torch.ones_like(x))


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}])
def test_an_optimizer_without_master_copies_steps_quantized_weights(options):
    model = make_quantized_model()
    before = [p.detach().clone().float() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0, **options)
    model(torch.ones(16, 64)).square().sum().backward()
    optimizer.step()
    for parameter, old in zip(model.parameters(), before, strict=True):
        change = (parameter.detach().float() - old).abs().max().item()
        assert change == pytest.approx(0.1, rel=0.1)


def test_copies_and_files_keep_the_codes(x):
    quantized = te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3)(x)
    clone = copy.deepcopy(quantized)
    clone.zero_()
    assert quantized.dequantize().abs().sum() > 0
    file = io.BytesIO()
    torch.save(quantized, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert type(loaded) is te.Float8Tensor
    assert torch.equal(loaded.dequantize(), quantized.dequantize())


def make_quantized_model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    with te.fp8_model_init(preserve_high_precision_init_val=True):
        return torch.nn.Sequential(te.Linear(64, 128), torch.nn.GELU(), te.LayerNormLinear(128, 64))


def test_model_init_quantizes_only_gemm_weights():
    model = make_quantized_model()
    kinds = {name: type(p) for name, p in model.named_parameters()}
    assert kinds["0.weight"] is te.Float8Tensor
    assert kinds["2.weight"] is te.Float8Tensor
    assert kinds["0.bias"] is torch.nn.Parameter
    assert kinds["2.layer_norm_weight"] is torch.nn.Parameter
    assert all(isinstance(p, torch.nn.Parameter) for p in model.parameters())


def test_quantized_weight_computes_with_its_values(x):
    model = make_quantized_model()
    plain = torch.nn.Linear(64, 128)
    with torch.no_grad():
        plain.weight.copy_(model[0].weight.dequantize())
        plain.bias.copy_(model[0].bias)
    torch.testing.assert_close(model[0](x), plain(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("in_fp8", [False, True])
def test_a_step_on_a_master_copy_trains_a_quantized_model(x, in_fp8):
    model = make_quantized_model()
    masters = [
        p.get_high_precision_init_val().float().requires_grad_()
        if isinstance(p, te.QuantizedTensor)
        else p
        for p in model.parameters()
    ]
    optimizer = torch.optim.AdamW(masters, lr=1e-2)
    losses = []
    for _ in range(20):
        with te.autocast(enabled=in_fp8, recipe=Float8CurrentScaling(fp8_format=Format.HYBRID)):
            loss = (model(x) - x).square().mean()
        loss.backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = parameter.grad.float()
        optimizer.step()
        model.zero_grad()
        optimizer.zero_grad()
        with torch.no_grad():
            for parameter, master in zip(model.parameters(), masters, strict=True):
                if isinstance(parameter, te.QuantizedTensor):
                    parameter.quantize_(master)
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_initial_values_are_kept_under_the_peers_names():
    with te.fp8_model_init(preserve_high_precision_init_val=True):
        torch.manual_seed(3)
        layer = te.Linear(32, 32, device="cpu")
    torch.manual_seed(3)
    plain = te.Linear(32, 32, device="cpu")
    weight = layer.weight
    assert hasattr(weight, "_high_precision_init_val")
    assert weight.get_high_precision_init_val() is weight._high_precision_init_val
    assert torch.equal(weight._high_precision_init_val, plain.weight)
    layer.half().float()
    assert torch.equal(layer.weight.get_high_precision_init_val(), plain.weight)
    layer.weight.clear_high_precision_init_val()
    assert not hasattr(layer.weight, "_high_precision_init_val")
    assert layer.weight.get_high_precision_init_val() is None
    with te.fp8_model_init():
        assert not hasattr(te.Linear(32, 32).weight, "_high_precision_init_val")


def test_the_gradient_of_a_quantized_weight_has_high_precision(x):
    model = make_quantized_model()
    model(x).sum().backward()
    assert type(model[0].weight.grad) is torch.Tensor
    assert model[0].weight.grad.dtype == torch.float32


def test_a_state_dict_of_quantized_weights_round_trips(x):
    model, other = make_quantized_model(), make_quantized_model()
    with torch.no_grad():
        model[0].weight.mul_(-3)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), model(x))


def test_a_high_precision_checkpoint_loads_into_quantized_weights(x):
    model = make_quantized_model()
    plain = torch.nn.Sequential(te.Linear(64, 128), torch.nn.GELU(), te.LayerNormLinear(128, 64))
    model.load_state_dict(plain.state_dict())
    assert type(model[0].weight) is te.Float8Tensor
    torch.testing.assert_close(model(x), plain(x), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_are_rounded_once_to_the_dtype_that_is_asked_for(x, dtype):
    quantized = te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3)(x.to(dtype))
    storage = quantized._storage
    exact = (
        storage.rowwise_data.view(torch.float8_e4m3fn).double() * storage.rowwise_scale_inv.double()
    )
    assert torch.equal(quantized.dequantize(torch.float32), exact.float())
    assert torch.equal(quantized.float(), exact.float())
    assert torch.equal(quantized.dequantize(torch.float64), exact.float().double())
    assert torch.equal(quantized.dequantize(), exact.float().to(dtype))


def test_a_rotated_copy_is_rotated_back_before_it_is_rounded(x):
    quantized = te.NVFP4Quantizer(with_rht=True)(x.bfloat16())
    quantized.update_usage(rowwise_usage=False)
    storage = quantized._storage
    rotated = torch.ops.telens.dequantize_blocks(
        storage.columnwise_data,
        storage.columnwise_scale_inv,
        storage.columnwise_tensor_scale,
        storage.fp8_dtype.value,
        storage.mode.value,
        torch.float32,
    ).t()[:, : x.shape[1]]
    expected = torch.ops.telens.hadamard_transform(rotated, storage.blocks[4], True)
    assert torch.equal(quantized.dequantize(torch.float32), expected)
    assert torch.equal(quantized.dequantize(), expected.bfloat16())
