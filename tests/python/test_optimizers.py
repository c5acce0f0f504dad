"""FusedAdam and FusedSGD, compared with torch's optimizers, and multi_tensor_* with loops."""

import copy

import pytest
import torch

import telens
import telens.pytorch as te
from telens.common.recipe import MXFP8BlockScaling

optimizers = te.optimizers
STEPS = 8


def make_parameters(dtype=torch.float32) -> list[torch.nn.Parameter]:
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size, dtype=dtype)) for size in ((5, 7), (3,), (0,))]


def gradients_of(parameters, step: int) -> list[torch.Tensor]:
    torch.manual_seed(100 + step)
    return [torch.randn(each.shape).to(each.dtype) for each in parameters]


def run(optimizer, parameters, steps=STEPS, first=0) -> list[torch.Tensor]:
    for step in range(first, first + steps):
        for parameter, gradient in zip(parameters, gradients_of(parameters, step), strict=True):
            parameter.grad = gradient
        optimizer.step()
    return [each.detach().clone() for each in parameters]


def assert_same(ours, theirs, **tolerances) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.float(), other.float(), **tolerances)


ADAM = [
    {},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "adam_w_mode": False},
    {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-5},
    {"weight_decay": 0.1, "capturable": True},
]


@pytest.mark.parametrize("options", ADAM)
def test_fused_adam_equals_torch(options):
    theirs = dict(options)
    adam_w = theirs.pop("adam_w_mode", True)
    theirs.pop("capturable", None)
    kind = torch.optim.AdamW if adam_w else torch.optim.Adam
    mine, other = make_parameters(), make_parameters()
    expected = run(kind(other, **{"weight_decay": 0.0} | theirs), other)
    assert_same(run(optimizers.FusedAdam(mine, **options), mine), expected)


def test_fused_adam_without_bias_correction_is_the_plain_formula():
    (parameter,) = (torch.nn.Parameter(torch.ones(4)),)
    optimizer = optimizers.FusedAdam([parameter], lr=0.1, bias_correction=False)
    parameter.grad = torch.full((4,), 2.0)
    optimizer.step()
    expected = 1 - 0.1 * (0.1 * 2) / ((0.001 * 4) ** 0.5 + 1e-8)
    torch.testing.assert_close(parameter.detach(), torch.full((4,), expected))


def test_bf16_parameters_with_master_weights_follow_the_fp32_training():
    low = make_parameters(torch.bfloat16)
    full = [torch.nn.Parameter(each.detach().float()) for each in low]
    optimizer = optimizers.FusedAdam(low, lr=1e-3, weight_decay=0.1, master_weights=True)
    theirs = torch.optim.AdamW(full, lr=1e-3, weight_decay=0.1)
    for step in range(STEPS):
        for mine, other, gradient in zip(low, full, gradients_of(low, step), strict=True):
            mine.grad, other.grad = gradient, gradient.float()
        optimizer.step()
        theirs.step()
    assert_same([optimizer.state[each]["master_param"] for each in low[:2]], full[:2])
    for mine, other in zip(low, full, strict=True):
        assert torch.equal(mine, other.bfloat16())


def test_remainders_hold_the_bits_of_fp32_master_weights():
    whole, split = make_parameters(torch.bfloat16), make_parameters(torch.bfloat16)
    first = optimizers.FusedAdam(whole, lr=1e-3, master_weights=True)
    second = optimizers.FusedAdam(split, lr=1e-3, master_weights=True, store_param_remainders=True)
    run(first, whole)
    run(second, split)
    for mine, other in zip(split[:2], whole[:2], strict=True):
        remainder = second.state[mine]["master_param"]
        assert remainder.dtype == torch.int16
        bits = (mine.detach().view(torch.int16).int() << 16) + remainder
        assert torch.equal(bits.view(torch.float32), first.state[other]["master_param"])


@pytest.mark.parametrize("stored", [True, False])
def test_remainders_do_not_load_as_fp32_masters_or_vice_versa(stored):
    params = make_parameters(torch.bfloat16)

    def make(remainders):
        return optimizers.FusedAdam(params, master_weights=True, store_param_remainders=remainders)

    saved = make(stored)
    run(saved, params)
    with pytest.raises(telens.UsageError, match="store_param_remainders"):
        make(not stored).load_state_dict(saved.state_dict())
    make(stored).load_state_dict(saved.state_dict())


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float16, 1e-3), (torch.bfloat16, 1e-2), (torch.uint8, 0.1)],
)
def test_moments_in_low_precision_stay_near_those_in_fp32(dtype, tolerance):
    mine, other = make_parameters(), make_parameters()
    low = optimizers.FusedAdam(mine, lr=1e-2, exp_avg_dtype=dtype, exp_avg_sq_dtype=dtype)
    full = optimizers.FusedAdam(other, lr=1e-2)
    run(low, mine)
    run(full, other)
    for name in ("exp_avg", "exp_avg_sq"):
        got, expected = (o.get_unscaled_state(p[0], name) for o, p in ((low, mine), (full, other)))
        assert got.dtype == torch.float32
        assert (got - expected).abs().max() <= tolerance * expected.abs().max()
    stored = low.state[mine[0]]["exp_avg"]
    assert isinstance(stored, te.Float8Tensor) if dtype == torch.uint8 else stored.dtype == dtype


@pytest.mark.parametrize("recipe", [None, MXFP8BlockScaling()])
def test_quantized_parameters_follow_their_master_weights(recipe):
    torch.manual_seed(1)
    with te.quantized_model_init(recipe=recipe):
        layer = te.Linear(64, 64, bias=False, device="cpu")
    start = layer.weight.dequantize().detach()
    layer.weight.grad = torch.ones_like(start)
    with pytest.raises(telens.UsageError, match=r"quantized.*master_weights=True"):
        optimizers.FusedAdam([layer.weight]).step()
    optimizer = optimizers.FusedAdam([layer.weight], lr=0.01, master_weights=True)
    plain = torch.nn.Parameter(start.clone())
    theirs = torch.optim.AdamW([plain], lr=0.01, weight_decay=0.0)
    for step in range(3):
        (gradient,) = gradients_of([plain], step)
        layer.weight.grad, plain.grad = gradient, gradient
        optimizer.step()
        theirs.step()
    torch.testing.assert_close(optimizer.state[layer.weight]["master_param"], plain.detach())
    expected = layer.weight._get_quantizer()(plain.detach()).dequantize()
    assert torch.equal(layer.weight.dequantize(), expected)
    assert isinstance(layer.weight, te.QuantizedTensor)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"master_weights": True, "store_param_remainders": True},
        {
            "master_weights": True,
            "exp_avg_dtype": torch.float16,
            "exp_avg_sq_dtype": torch.bfloat16,
        },
    ],
)
def test_a_saved_optimizer_continues(options):
    parameters = make_parameters(torch.bfloat16)
    optimizer = optimizers.FusedAdam(parameters, lr=1e-2, **options)
    run(optimizer, parameters)
    saved = copy.deepcopy(optimizer.state_dict())
    assert {each.dtype for state in saved["state"].values() for each in state.values()} <= {
        torch.float32,
        torch.int16,
    }
    twins = [torch.nn.Parameter(each.detach().clone()) for each in parameters]
    again = optimizers.FusedAdam(twins, lr=1.0, **options)
    again.load_state_dict(saved)
    expected = run(optimizer, parameters, 3, first=STEPS)
    assert_same(run(again, twins, 3, first=STEPS), expected, atol=0, rtol=1e-2)


def test_decoupled_gradients_are_read_and_cleared():
    mine, other = make_parameters()[:2], make_parameters()[:2]
    optimizer = optimizers.FusedAdam(mine, use_decoupled_grad=True)
    for parameter, gradient in zip(mine, gradients_of(mine, 0), strict=True):
        parameter.decoupled_grad = gradient.double().float()
    optimizer.step()
    assert_same([each.detach() for each in mine], run(optimizers.FusedAdam(other), other, 1))
    optimizer.zero_grad(set_to_none=False)
    assert mine[0].decoupled_grad.abs().max() == 0
    optimizer.zero_grad()
    assert mine[0].decoupled_grad is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amsgrad": True}, "amsgrad=True is not supported"),
        ({"exp_avg_dtype": torch.float64}, "exp_avg_dtype is torch.float64; expected one of"),
        (
            {"master_weights": True, "master_weight_dtype": torch.bfloat16},
            "master_weight_dtype is torch.bfloat16",
        ),
        ({"capturable": True, "exp_avg_dtype": torch.float16}, "with capturable=True"),
        (
            {"capturable": True, "master_weights": True, "store_param_remainders": True},
            "store_param_remainders is True with capturable=True; expected False",
        ),
    ],
)
def test_fused_adam_rejects_unsupported_options(options, message):
    with pytest.raises(telens.UsageError, match=message):
        optimizers.FusedAdam(make_parameters(), **options)


SGD = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
]


@pytest.mark.parametrize("options", SGD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_sgd_equals_torch(options, dtype):
    mine, other = make_parameters(dtype), make_parameters(dtype)
    expected = run(torch.optim.SGD(other, lr=0.05, **options), other)
    # torch rounds each of its steps to BF16, ours rounds once.
    tolerances = {} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.02}
    got = run(optimizers.FusedSGD(mine, lr=0.05, **options), mine)
    assert_same(got, expected, **tolerances)


def test_fused_sgd_keeps_momentum_without_gradient():
    mine, other = make_parameters()[:2], make_parameters()[:2]
    ours = optimizers.FusedSGD(mine, lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(other, lr=0.1, momentum=0.9)
    for step, given in enumerate(((0,), (0, 1), (1,), (0, 1))):
        for optimizer, parameters in ((ours, mine), (theirs, other)):
            optimizer.zero_grad()
            for index in given:
                parameters[index].grad = gradients_of(parameters, step)[index]
            optimizer.step()
    assert_same(mine, [each.detach() for each in other])


def test_fused_sgd_adds_weight_decay_after_momentum():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = optimizers.FusedSGD(
        [parameter], lr=0.1, momentum=0.5, weight_decay=0.1, wd_after_momentum=True
    )
    momentum, value = torch.zeros(3), torch.ones(3)
    for step in range(3):
        (parameter.grad,) = gradients_of([parameter], step)
        optimizer.step()
        momentum = parameter.grad if step == 0 else 0.5 * momentum + parameter.grad
        value = value - 0.1 * (momentum + 0.1 * value)
    torch.testing.assert_close(parameter.detach(), value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr is -1.0; expected a number from 0 on"),
        ({"lr": 0.1, "nesterov": True}, "nesterov with momentum=0"),
    ],
)
def test_fused_sgd_rejects_unsupported_options(options, message):
    with pytest.raises(telens.UsageError, match=message):
        optimizers.FusedSGD(make_parameters(), **options)


# ------------------------------------------------------------------------------ multi_tensor_*

apply = optimizers.multi_tensor_applier


def make_lists() -> tuple[list[torch.Tensor], torch.Tensor]:
    torch.manual_seed(1)
    tensors = [torch.randn(3, 4), torch.randn(5).bfloat16(), torch.randn(2).half()]
    return tensors, torch.zeros(1, dtype=torch.int32)


def test_scale_multiplies_and_reports_nonfinite():
    tensors, flag = make_lists()
    outputs = [torch.empty(each.shape) for each in tensors]
    apply(optimizers.multi_tensor_scale, flag, [tensors, outputs], 0.5)
    assert flag.item() == 0
    assert_same(outputs, [each.float() * 0.5 for each in tensors], atol=0, rtol=0)
    tensors[1][2] = torch.inf
    scale = torch.tensor([2.0])
    apply(optimizers.multi_tensor_scale_tensor, flag, [tensors, outputs], scale)
    assert flag.item() == 1
    assert_same(outputs, [each.float() * 2 for each in tensors], atol=0, rtol=0)


def test_l2norm_covers_all_and_per_tensor():
    tensors, flag = make_lists()
    whole = torch.cat([each.float().flatten() for each in tensors])
    norm, each_norm = apply(optimizers.multi_tensor_l2norm, flag, [tensors], True)
    torch.testing.assert_close(norm, whole.norm().reshape(1))
    torch.testing.assert_close(each_norm, torch.stack([t.float().norm() for t in tensors]))
    scaled, none = apply(
        optimizers.multi_tensor_unscale_l2norm, flag, [tensors], torch.tensor([0.25])
    )
    torch.testing.assert_close(scaled, norm / 4)
    assert none.numel() == flag.item() == 0


def test_sgd_is_skipped_if_the_flag_is_set():
    (p,), flag = [torch.ones(3)], torch.ones(1, dtype=torch.int32)
    lists = [[torch.ones(3)], [p], [torch.zeros(3)]]
    arguments = (0.0, 0.9, 0.0, 0.1, False, True, False, 1.0)
    apply(optimizers.multi_tensor_sgd, flag, lists, *arguments)
    assert torch.equal(p, torch.ones(3))
    flag.zero_()
    apply(optimizers.multi_tensor_sgd, flag, lists, *arguments)
    torch.testing.assert_close(p, torch.full((3,), 0.9))


def test_capturable_adam_is_skipped_if_the_flag_is_set():
    flag = torch.ones(1, dtype=torch.int32)
    lists = [[torch.ones(3)], [torch.ones(3)], [torch.zeros(3)], [torch.zeros(3)]]
    arguments = [torch.tensor(0.1), 0.9, 0.999, 1e-8, torch.ones(1, dtype=torch.int32), 1, 1, 0.0]
    step = optimizers.multi_tensor_adam_capturable
    apply(step, flag, lists, *arguments, torch.ones(1))
    assert torch.equal(lists[1][0], torch.ones(3))
    assert lists[2][0].abs().max() == 0
    flag.zero_()
    apply(step, flag, lists, *arguments, torch.full((1,), 0.5))
    torch.testing.assert_close(lists[1][0], torch.full((3,), 0.9))
    torch.testing.assert_close(lists[2][0], torch.full((3,), 0.05))


def test_adam_on_codes_writes_codes_amax_and_inverse_scale():
    torch.manual_seed(1)
    master = torch.randn(16)
    plain = [torch.ones(16), master.clone(), torch.zeros(16), torch.zeros(16)]
    codes = torch.zeros(16, dtype=torch.uint8)
    scale, amax, inverse = torch.tensor([4.0]), torch.zeros(1), torch.zeros(1)
    arguments = (0.1, 0.9, 0.999, 1e-8, 1, 1, 1, 0.01)
    optimizers.multi_tensor_adam(1, None, [[each] for each in plain], *arguments)
    lists = [torch.ones(16), codes, torch.zeros(16), torch.zeros(16), master, scale, amax, inverse]
    optimizers.multi_tensor_adam_fp8(
        1, None, [[each] for each in lists], *arguments, te.DType.kFloat8E4M3
    )
    assert torch.equal(master, plain[1])
    assert torch.equal(codes.view(torch.float8_e4m3fn), (master * 4).to(torch.float8_e4m3fn))
    assert (amax.item(), inverse.item()) == (master.abs().max().item(), 0.25)


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(telens.UsageError, match=r"tensor_lists have lengths \[1, 2\]"):
        apply(optimizers.multi_tensor_scale, None, [[torch.ones(1)], [torch.ones(1)] * 2], 1.0)
