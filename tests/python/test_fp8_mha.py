"""fp8_mha: the projections before and after attention use its codes, without a second rounding."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling

STEPS = 3


def make_attention(**options) -> te.MultiheadAttention:
    torch.manual_seed(1)
    options = {"attention_dropout": 0.0, "num_gqa_groups": 2, "fuse_qkv_params": True} | options
    return te.MultiheadAttention(64, 4, params_dtype=torch.bfloat16, **options)


def step(attention, number, recipe, *, checkpoint=False, **arguments):
    """Returns the output, and the gradients of the input and of all parameters."""
    torch.manual_seed(10 + number)
    x = (torch.randn(16, 2, 64) * 2**number).bfloat16().requires_grad_()
    if attention.attention_type == "cross":
        arguments["encoder_output"] = torch.randn(16, 2, 64).bfloat16()
    attention.zero_grad()
    with te.autocast(recipe=recipe):
        output = (
            te.checkpoint(attention, x, **arguments) if checkpoint else attention(x, **arguments)
        )
    gradient = torch.randn(output.shape).bfloat16()
    output.backward(gradient)
    found = [output.detach(), x.grad]
    return found + [p.grad for p in attention.parameters() if p.grad is not None], gradient


RECIPES = {
    "delayed": lambda **on: DelayedScaling(amax_history_len=1, **on),
    "current": lambda **on: Float8CurrentScaling(**on),
}


def cast(x: torch.Tensor, scale: float | None, form: te.DType) -> torch.Tensor:
    """Returns values of codes in FP64; without a scale, with that of the tensor's own amax."""
    if scale is None:
        return te.Float8CurrentScalingQuantizer(form)(x).dequantize().double()
    return te.Float8Quantizer(torch.tensor([scale]), torch.zeros(1), form)(x).dequantize().double()


def proj_against_values(recipe) -> list[list[bool]]:
    """Returns for each step whether proj's output and its weight's gradient are those of the values
    that attention returned: codes / scale, rounded to BF16, an error of 2^-8 in each term.
    """
    attention = make_attention()
    proj = attention.proj
    attended = []
    attention.core_attention.register_forward_hook(lambda *call: attended.append(call[2].detach()))
    proj_out = []
    proj.register_forward_hook(lambda *call: proj_out.append(call[2].detach()))
    held = []
    for number in range(STEPS):
        scales = (None, None)
        if recipe.delayed():
            scales = (1.0, 1.0)
        if recipe.delayed() and number:
            meta = proj.fp8_meta
            scales = (meta["scaling_fwd"].scale[1].item(), meta["scaling_bwd"].scale[0].item())
        weight = cast(proj.weight.detach(), scales[0], te.DType.kFloat8E4M3)
        _, gradient = step(attention, number, recipe)
        gradient = cast(gradient.flatten(0, 1), scales[1], te.DType.kFloat8E5M2)
        x = attended[-1].flatten(0, 1).double()
        products = [
            (x, weight.t(), proj_out[-1].flatten(0, 1)),
            (gradient.t(), x, proj.weight.grad),
        ]
        fits = []
        for a, b, made in products:
            bias = proj.bias.detach().double() if made is products[0][2] else 0
            expected = a @ b + bias
            bound = (a.abs() @ b.abs()) * 2.0**-8 + 2.0**-8 * expected.abs() + 2.0**-30
            fits.append(bool(((made.double() - expected).abs() <= bound).all()))
        held.append(fits)
    return held


@pytest.mark.parametrize("make", RECIPES.values(), ids=RECIPES)
def test_proj_multiplies_the_codes_of_the_attentions_output(make):
    assert proj_against_values(make(fp8_mha=True)) == [[True, True]] * STEPS


def test_proj_rounds_again_with_only_fp8_dpa():
    assert [False, False] in proj_against_values(RECIPES["delayed"](fp8_dpa=True))


@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
def test_casts_between_attention_and_projections_keep_no_history(cross):
    recipe = DelayedScaling(amax_history_len=1, fp8_mha=True)
    attention = make_attention(attention_type="cross" if cross else "self")
    for number in range(STEPS):
        step(attention, number, recipe)
    core = attention.core_attention.fp8_meta
    assert (core["scaling_fwd"].scale[[2, 3, 8]] != 1).all()
    assert (core["scaling_bwd"].scale[[0, 3, 5]] != 1).all()
    # The scales of proj's input and of the gradient before the attention are never computed.
    assert attention.proj.fp8_meta["scaling_fwd"].scale[0] == 1
    projections = [attention.query_layer, attention.key_value] if cross else [attention.qkv]
    for projection in projections:
        assert projection.fp8_meta["scaling_bwd"].scale[0] == 1
    assert attention.proj.fp8_meta["scaling_bwd"].scale[0] != 1


def test_projections_cast_separately_with_only_fp8_dpa():
    attention = make_attention()
    for number in range(STEPS):
        step(attention, number, DelayedScaling(amax_history_len=1, fp8_dpa=True))
    assert attention.proj.fp8_meta["scaling_fwd"].scale[0] != 1
    assert attention.qkv.fp8_meta["scaling_bwd"].scale[0] != 1


def test_threads_hand_each_its_own_scales():
    attention = make_attention()
    inputs = [(torch.randn(16, 2, 64) * size).bfloat16() for size in (1, 64)]

    def forward(x):
        with te.autocast(recipe=Float8CurrentScaling(fp8_mha=True)):
            return attention(x)

    alone = [forward(x) for x in inputs]
    both = threading.Barrier(2, timeout=60)

    def wait(*call):
        both.wait()

    # Each attention has cast its output before a projection uses it.
    attention.core_attention.register_forward_hook(wait)
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(forward, inputs))
    assert all(map(torch.equal, alone, together))


@pytest.mark.parametrize("between", ["rope", "norm"])
def test_operation_in_between_makes_projection_cast_its_gradient(between):
    recipe = DelayedScaling(amax_history_len=1, fp8_mha=True)
    attention = make_attention(**({"qk_norm_type": "RMSNorm"} if between == "norm" else {}))
    angles = te.RotaryPositionEmbedding(16)(16)
    arguments = {"rotary_pos_emb": angles} if between == "rope" else {}
    for number in range(STEPS):
        step(attention, number, recipe, **arguments)
    assert attention.qkv.fp8_meta["scaling_bwd"].scale[0] != 1
    assert attention.proj.fp8_meta["scaling_fwd"].scale[0] == 1


@pytest.mark.parametrize("make", RECIPES.values(), ids=RECIPES)
def test_a_checkpoint_around_it_changes_no_bit(make):
    recipe = make(fp8_mha=True)
    runs = []
    for checkpoint in (False, True):
        attention = make_attention()
        runs.append([step(attention, n, recipe, checkpoint=checkpoint)[0] for n in range(STEPS)])
    for kept, anew in zip(*runs, strict=True):
        assert all(map(torch.equal, kept, anew))


def test_watched_tensors_change_no_bit_and_the_ledger_says_fp8(tmp_path):
    recipe = DelayedScaling(amax_history_len=1, fp8_mha=True)
    plain = make_attention(name="a")
    expected = [step(plain, n, recipe)[0] for n in range(STEPS)]
    config = tmp_path / "config.yaml"
    config.write_text(
        "all:\n  enabled: True\n  layers: {layer_name_regex_pattern: .*}\n  telens:\n"
        "    PrecisionLedger: {enabled: True}\n  transformer_engine:\n"
        "    LogTensorStats: {enabled: True, stats: [max], tensors: [query, scores, "
        "attention_output, attention_output_gradient, activation]}\n"
    )
    debug.initialize(config_file=str(config), log_dir=str(tmp_path / "run"))
    try:
        watched = make_attention(name="a")
        made = []
        for number in range(STEPS):
            made.append(step(watched, number, recipe)[0])
            debug.step()
    finally:
        debug.end_debug()
    for ours, theirs in zip(made, expected, strict=True):
        assert all(map(torch.equal, ours, theirs))
    table = telens.open_run(tmp_path / "run").table("ledger")
    rows = table[(table["layer"] == "a.core_attention") & (table["iteration"] == 0)]
    found = dict(zip(rows["entry"].astype(str), rows["detail"].astype(str), strict=True))
    assert found["query ran"].startswith("E4M3")
    assert found["kernel"] == "FP8 attention by formulas"
