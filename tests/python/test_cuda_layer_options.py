"""Attention and Transformer layers of every kind on a GPU and on the CPU: masks, windows, biases,
sinks, groups, norms of heads, cross attention, and FP8 around and inside attention. Skipped where
there is no GPU; `make gpu-check` runs them. TELENS_TEST_DEVICE=cpu runs them on the CPU.
"""

import pytest
import torch
from cuda_beside import BATCH, HEADS, HIDDEN, TOKENS, WIDTH, assert_beside, build, needs_gpu, normal
from cuda_helpers import DEVICE

import telens.pytorch as te
from telens.common import recipe as recipes

pytestmark = [needs_gpu, pytest.mark.usefixtures("ops")]


def run(module, device, dtype, recipe=None, steps=1, **arguments) -> dict[str, torch.Tensor]:
    """Returns output and gradients of the last step. Tensors among the arguments are moved."""
    moved = {
        name: each.to(device, dtype if each.is_floating_point() else None)
        if isinstance(each, torch.Tensor)
        else each
        for name, each in arguments.items()
    }
    for step in range(steps):
        module.zero_grad()
        x = normal(TOKENS, BATCH, WIDTH, seed=step).to(device, dtype).requires_grad_()
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            y = module(x, **moved)
        y.backward(normal(*y.shape, seed=10 + step).to(device, dtype))
    found = {"y": y, "dx": x.grad}
    found |= {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return {name: value.detach().cpu().double() for name, value in found.items()}


ANGLES = te.RotaryPositionEmbedding(WIDTH // HEADS)(TOKENS).float().cpu()
BIAS = normal(1, HEADS, TOKENS, TOKENS, seed=3)
SLOPES = normal(HEADS, seed=4).abs()
ENCODED = normal(24, BATCH, WIDTH, seed=5)
HIDDEN_PAIRS = normal(BATCH, 1, TOKENS, TOKENS, seed=6) > 0.5
PADDING = torch.arange(TOKENS) >= torch.tensor([TOKENS, 20])[:, None, None, None]
KINDS = {
    "no mask": ({"attn_mask_type": "no_mask"}, {}),
    "window": ({"window_size": (5, 0)}, {}),
    "window of both sides": ({"attn_mask_type": "no_mask", "window_size": (5, 3)}, {}),
    "arbitrary": ({"attn_mask_type": "arbitrary"}, {"attention_mask": HIDDEN_PAIRS}),
    "padding": ({"attn_mask_type": "padding"}, {"attention_mask": PADDING}),
    "alibi": ({}, {"core_attention_bias_type": "alibi"}),
    "slopes": ({}, {"core_attention_bias_type": "alibi", "alibi_slopes": SLOPES}),
    "bias": ({}, {"core_attention_bias_type": "post_scale_bias", "core_attention_bias": BIAS}),
    "groups": ({"num_gqa_groups": 2}, {"rotary_pos_emb": ANGLES}),
    "one group": ({"num_gqa_groups": 1, "fuse_qkv_params": True}, {}),
    "norms of heads": ({"qk_norm_type": "RMSNorm"}, {"rotary_pos_emb": ANGLES}),
    "norms of length 1": (
        {"qk_norm_type": "L2Normalization", "qk_norm_before_rope": True},
        {"rotary_pos_emb": ANGLES},
    ),
    "sink": ({"softmax_type": "learnable"}, {}),
    "off by one": ({"softmax_type": "off-by-one"}, {}),
    "RMSNorm": ({"normalization": "RMSNorm", "bias": False, "zero_centered_gamma": True}, {}),
    "recomputed": ({}, {"checkpoint_core_attention": True}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_attention_matches_cpu(kind, dtype):
    options, arguments = KINDS[kind]
    ours, theirs = (
        run(build("MultiheadAttention", device, dtype, **options), device, dtype, **arguments)
        for device in (DEVICE, "cpu")
    )
    assert_beside(ours, theirs, dtype=dtype)


LAYERS = {
    "norm at the end": {"output_layernorm": True},
    "residuals behind the norm": {"apply_residual_connection_post_layernorm": True},
    "side by side": {"parallel_attention_mlp": True},
    "fused": {"fuse_qkv_params": True, "num_gqa_groups": 2, "activation": "swiglu"},
    "without biases": {"bias": False, "normalization": "RMSNorm", "activation": "srelu"},
}


@pytest.mark.parametrize("kind", LAYERS)
def test_every_kind_of_layer_matches_cpu(kind):
    ours, theirs = (
        run(build("TransformerLayer", device, torch.float32, **LAYERS[kind]), device, torch.float32)
        for device in (DEVICE, "cpu")
    )
    assert_beside(ours, theirs, dtype=torch.float32)


@pytest.mark.parametrize("recipe", [None, recipes.DelayedScaling, recipes.MXFP8BlockScaling])
def test_decoders_with_an_encoder_match_cpu(recipe):
    def decoded(device, dtype, make):
        layer = build("TransformerLayer", device, dtype, layer_type="decoder")
        form = None if make is None else make()
        return run(layer, device, dtype, form, steps=2, encoder_output=ENCODED)

    exact = decoded("cpu", torch.float32, None)
    dtype = torch.float32 if recipe is None else torch.bfloat16
    ours, theirs = (decoded(device, dtype, recipe) for device in (DEVICE, "cpu"))
    assert_beside(ours, theirs, None if recipe is None else exact, dtype, part=1.0)


FP8_ATTENTION = {
    "delayed": lambda **on: recipes.DelayedScaling(amax_history_len=4, **on),
    "current": lambda **on: recipes.Float8CurrentScaling(**on),
    "MXFP8": lambda **on: recipes.MXFP8BlockScaling(**on),
}
WAYS = {"inside": {"fp8_dpa": True}, "inside and around": {"fp8_dpa": True, "fp8_mha": True}}


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("recipe", FP8_ATTENTION)
def test_fp8_inside_and_around_attention_matches_cpu(recipe, ways):
    if recipe == "MXFP8" and ways != "inside":
        pytest.skip("no projection takes its blocks over")

    def attended(device):
        module = build("MultiheadAttention", device, num_gqa_groups=2, fuse_qkv_params=True)
        form = FP8_ATTENTION[recipe](**WAYS[ways])
        return run(module, device, torch.bfloat16, form, steps=3)

    exact = run(
        build("MultiheadAttention", "cpu", torch.float32, num_gqa_groups=2, fuse_qkv_params=True),
        *("cpu", torch.float32, None, 3),
    )
    assert_beside(attended(DEVICE), attended("cpu"), exact, part=1.0)


@pytest.mark.parametrize("recipe", [recipes.DelayedScaling, recipes.Float8CurrentScaling])
def test_codes_of_an_fp8_output_are_close_to_cpu(recipe):
    """If a product rounds differently, it gets the neighboring code."""

    def made(device):
        layer, form = build("Linear", device), recipe()
        for step in range(2):
            x = normal(TOKENS, BATCH, WIDTH, seed=step).to(device, torch.bfloat16)
            with te.autocast(recipe=form), torch.no_grad():
                y = layer(x, fp8_output=True)
        assert isinstance(y, te.QuantizedTensor)
        # Casts of operands increase each by at most a sixteenth, or by the smallest code.
        magnitudes = x.float().cpu().abs() @ layer.weight.detach().float().cpu().abs().t()
        return y.dequantize().float().cpu(), 1.25 * magnitudes

    (ours, magnitudes), (theirs, _) = made(DEVICE), made("cpu")
    apart = (ours - theirs).abs()
    # Tensor cores cut 33 terms of each 32 products to 13 bits after the leading bit of the largest
    # one (docs/internals/performance.md). The sums are rounded to BF16 on both devices.
    products = WIDTH / 32 * 33 * 2**-13 * magnitudes + 2**-8 * theirs.abs()
    # Neighboring codes differ by at most an eighth of the value; near zero they have a constant
    # distance.
    codes = 0.13 * torch.maximum(ours.abs(), theirs.abs()) + theirs.abs().max() * 2**-14
    beyond = apart > products + codes
    assert not beyond.any(), (ours[beyond][:5], theirs[beyond][:5], (products + codes)[beyond][:5])
    # The scale is that of the largest output, which may differ by a rounding.
    assert (apart > 2**-6 * theirs.abs()).double().mean() < 0.1


@pytest.mark.parametrize("kind", ["hidden_dropout", "attention_dropout", "drop_path_rate"])
def test_layer_dropout_is_drawn_per_call_and_off_in_evaluation(kind):
    layer = te.TransformerLayer(
        WIDTH, HIDDEN, HEADS, device=DEVICE,
        **({"hidden_dropout": 0.0, "attention_dropout": 0.0} | {kind: 0.5}),
    )  # fmt: skip
    x = normal(TOKENS, 16, WIDTH).to(DEVICE)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(layer(x))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-5)
    assert (results[0] - results[2]).norm() > 1e-2 * results[0].norm()
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x), rtol=1e-5, atol=1e-5)
