"""fp8_output of DotProductAttention: the codes that it passes to the next layer."""

import pytest
import torch
from debug_helpers import Scalars, section
from test_fp8_attention import FORWARD, drawn

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling

RECIPES = {
    "delayed": lambda **on: DelayedScaling(amax_history_len=1, **on),
    "current": lambda **on: Float8CurrentScaling(**on),
}
STEPS = 3
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def make_attention(layout="bshd", mask="causal", **options) -> te.DotProductAttention:
    options = {"num_gqa_groups": 2} | options
    return te.DotProductAttention(4, 16, qkv_format=layout, attn_mask_type=mask, **options)


def arranged(layout, tensors, gradient):
    """Tensors of bshd in a layout, and the arguments that it needs."""
    if layout == "sbhd":
        return [x.transpose(0, 1).contiguous() for x in tensors], gradient.transpose(0, 1), {}
    if layout == "thd":
        # The second sequence is 5 shorter and padded.
        sums = torch.tensor([0, 24, 43], dtype=torch.int32)
        starts = torch.tensor([0, 24, 48], dtype=torch.int32)
        arguments = {"cu_seqlens_q": sums, "cu_seqlens_q_padded": starts}
        return [x.flatten(0, 1) for x in tensors], gradient.flatten(0, 1), arguments
    return tensors, gradient, {}


def step(attention, recipe, given, **options):
    """Returns the output, and the gradients of query, key and value for a given one of the
    output.
    """
    tensors, gradient, arguments = given
    leaves = [x.clone().requires_grad_() for x in tensors]
    with te.autocast(recipe=recipe):
        output = attention(*leaves, **arguments, **options)
    output.backward(gradient)
    return output, [x.grad for x in leaves]


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "thd"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", RECIPES)
def test_codes_match_the_plain_output(name, dtype, layout):
    recipe = RECIPES[name](fp8_dpa=True)
    mask = "padding_causal" if layout == "thd" else "causal"
    plain, handing = (make_attention(layout, mask) for _ in range(2))
    for number in range(STEPS):
        tensors, gradient = drawn(number, dtype, groups=2)
        given = arranged(layout, [x * 3**number for x in tensors], gradient)
        scale = 1.0
        if name == "delayed" and number:
            scale = plain.fp8_meta["scaling_fwd"].scale[FORWARD["o"]].item()
        values, expected = step(plain, recipe, given)
        output, gradients = step(handing, recipe, given, fp8_output=True)
        assert isinstance(output, te.tensor.Float8Tensor)
        assert (output.shape, output.dtype) == (values.shape, dtype)
        assert torch.equal(output.dequantize(), values)
        if name == "current":  # its own amax makes the scale: the largest code is 448
            scale = 1 / output._scale_inv.item()
            assert output._data.view(torch.float8_e4m3fn).float().abs().max() == 448
        quantizer = te.Float8Quantizer(torch.tensor([scale]), torch.zeros(1), te.DType.kFloat8E4M3)
        assert torch.equal(output._data, quantizer(values.detach())._data)
        # Decoded without our operators.
        decoded = output._data.view(torch.float8_e4m3fn).float() * output._scale_inv
        assert torch.equal(decoded.to(dtype).view_as(values), values)
        assert all(map(torch.equal, gradients, expected))
    assert torch.equal(plain.get_extra_state(), handing.get_extra_state())


def test_the_next_layer_takes_them_without_a_cast():
    torch.manual_seed(1)
    attention, after = make_attention(), te.Linear(64, 32, params_dtype=torch.bfloat16)
    tensors, _ = drawn(3, torch.bfloat16, groups=2)
    recipe, results = DelayedScaling(amax_history_len=4, fp8_dpa=True), []
    for _ in range(2):
        leaves = [x.clone().requires_grad_() for x in tensors]
        with te.autocast(recipe=recipe):
            output = attention(*leaves, fp8_output=True)
            made = after(output)
        made.sum().backward()
        history = after.fp8_meta["scaling_fwd"].amax_history
        results.append((output, made, history[:, 0].max().item(), history[:, 1].max().item()))
        after.fp8_meta["scaling_fwd"].scale[0] = 2.0**20  # under it all would be 448
    for output, made, of_input, of_weight in results:
        assert of_input == 0  # it looked at no input
        assert of_weight > 0
        weight = te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3)(after.weight.detach())
        a, b = output.dequantize().double().flatten(0, 1), weight.dequantize().double()
        # Weights have 3 bits after the leading one, whatever their scale.
        bound = (a.abs() @ b.abs().t()) * 2.0**-3 + 2.0**-7
        error = (made.flatten(0, 1).double() - after.bias.double() - a @ b.t()).abs()
        assert (error <= bound).all()
    assert all(x.grad.isfinite().all() and x.grad.any() for x in leaves)


@pytest.mark.parametrize("name", RECIPES)
def test_a_checkpoint_around_it_changes_no_bit(name):
    recipe = RECIPES[name](fp8_dpa=True)
    runs = []
    for checkpoints in (False, True):
        attention = make_attention()
        runs.append([])
        for number in range(2):
            tensors, gradient = drawn(number, torch.bfloat16, groups=2)
            leaves = [x.clone().requires_grad_() for x in tensors]
            call = (
                (lambda *a, m=attention, **k: te.checkpoint(m, *a, **k))
                if checkpoints
                else attention
            )
            with te.autocast(recipe=recipe):
                output = call(*leaves, fp8_output=True)
            assert isinstance(output, te.QuantizedTensor)
            output.backward(gradient)
            runs[-1] += [output.dequantize().detach(), *(x.grad for x in leaves)]
    assert all(map(torch.equal, *runs))


def test_in_high_precision_nothing_is_cast():
    attention, (tensors, _) = make_attention(), drawn(4, torch.bfloat16, groups=2)
    expected = attention(*tensors)
    calls = {
        "no autocast": {"enabled": False},
        "no attention in FP8": {"recipe": DelayedScaling()},
        "calibrating": {
            "enabled": False,
            "calibrating": True,
            "recipe": DelayedScaling(fp8_dpa=True),
        },
    }
    for what, options in calls.items():
        with te.autocast(**options):
            output = attention(*tensors, fp8_output=True)
        assert type(output) is torch.Tensor, what
        assert torch.equal(output, expected), what


def test_a_recipe_that_does_not_cast_the_output_is_refused_by_name():
    attention, (tensors, _) = make_attention(), drawn(5, torch.bfloat16, groups=2)
    message = "DotProductAttention: fp8_output=True, but its recipe does not quantize the output"
    with te.autocast(recipe=MXFP8BlockScaling(fp8_dpa=True)):
        attention(*tensors)
        with pytest.raises(telens.UsageError, match=message):
            attention(*tensors, fp8_output=True)


@pytest.mark.parametrize("name", RECIPES)
def test_an_empty_output_and_one_without_gradients_are_codes_too(name):
    attention, (tensors, _) = make_attention().eval(), drawn(6, torch.bfloat16, groups=2)
    with te.autocast(recipe=RECIPES[name](fp8_dpa=True)), torch.no_grad():
        output = attention(*tensors, fp8_output=True)
        assert torch.equal(output.dequantize(), attention(*tensors))
        empty = attention(*(x[:0] for x in tensors), fp8_output=True)
    assert isinstance(empty, te.QuantizedTensor)
    assert empty.shape == (0, 24, 64)


def test_features_see_the_values_and_the_ledger_the_codes(tmp_path):
    statistics = {"enabled": True, "tensors": ["attention_output", "activation"], "stats": ["max"]}
    config = {
        "statistics": section({"LogTensorStats": statistics})["section"],
        "ledger": section({"PrecisionLedger": {"enabled": True}}, namespace="telens")["section"],
    }
    tensors, _ = drawn(7, torch.bfloat16, groups=2)

    def run(watched):
        torch.manual_seed(1)
        attention = make_attention()
        after = te.Linear(64, 32, params_dtype=torch.bfloat16, name="after")
        model = torch.nn.ModuleDict({"attention": attention, "after": after})
        if watched:
            debug.infer_and_assign_layer_names(model)
        leaves = [x.clone().requires_grad_() for x in tensors]
        with te.autocast(recipe=Float8CurrentScaling(fp8_dpa=True)):
            output = attention(*leaves, fp8_output=True)
            made = after(output)
        made.sum().backward()
        return [output.dequantize().detach(), made.detach(), *(x.grad for x in leaves)]

    expected, logger = run(False), Scalars()
    with debug.session(config, log_dir=tmp_path, statistics_logger=logger):
        found = run(True)
        debug.step()
    assert all(map(torch.equal, found, expected))
    logged = {name: value for name, value, _ in logger.rows}
    largest = expected[0].float().max().item()
    assert [v for n, v in logged.items() if "attention_output_max" in n] == [largest]
    assert [v for n, v in logged.items() if "activation_max" in n] == [largest]
    ledger = telens.open_run(tmp_path).table("ledger")
    rows = ledger[(ledger["layer"] == "model.after") & (ledger["entry"] == "activation ran")]
    assert {detail.split()[0] for detail in rows["detail"].astype(str)} == {"E4M3"}
