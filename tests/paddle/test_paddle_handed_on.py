"""Arguments of a layer reach the layers and core modules of which it consists."""

import functools

import numpy as np
import paddle
import paddle_helpers as helpers
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import telens.paddle as te
import telens.pytorch as torch_te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling

no_dropout = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
LAYERS = {
    "Linear": functools.partial(te.Linear, 32, 32),
    "LayerNormLinear": functools.partial(te.LayerNormLinear, 32, 32),
    "LayerNormMLP": functools.partial(te.LayerNormMLP, 32, 64),
    "MultiHeadAttention": functools.partial(te.MultiHeadAttention, 32, 4, 0.0),
    "MultiHeadAttention with a norm": functools.partial(
        te.MultiHeadAttention, 32, 4, 0.0, input_layernorm=True
    ),
    "TransformerLayer": functools.partial(te.TransformerLayer, 32, 64, 4, **no_dropout),
}
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def is_weight(parameter):
    return parameter.ndim == 2


def biases(layer):
    """Those of GEMMs."""
    return [p for n, p in layer.named_parameters() if n.endswith("bias") and "ln" not in n]


def inputs(seed=0):
    return helpers.randoms(2, 16, 32, seed=seed)


# ---------------------------------------------------------------------- parameters


@every_layer
def test_every_gemm_has_the_attributes(make):
    constant = paddle.nn.initializer.Constant
    layer = make(
        weight_attr=paddle.ParamAttr(initializer=constant(0.5), learning_rate=0.25),
        bias_attr=paddle.ParamAttr(initializer=constant(2.0), need_clip=False),
    )
    weights = [each for each in layer.parameters() if is_weight(each)]
    assert weights
    assert biases(layer)
    for each in weights:
        assert (each.numpy() == 0.5).all()
        assert each.optimize_attr["learning_rate"] == 0.25
    for each in biases(layer):
        assert (each.numpy() == 2).all()
        assert not each.need_clip
    assert not biases(make(bias_attr=False))


def test_a_norm_has_the_attributes():
    constant = paddle.nn.initializer.Constant
    layer = te.LayerNorm(
        16,
        weight_attr=paddle.ParamAttr(name="gain", initializer=constant(3.0)),
        bias_attr=paddle.ParamAttr(name="shift", initializer=constant(2.0), learning_rate=0.5),
    )
    assert (layer.weight.name, layer.bias.name) == ("gain", "shift")
    assert layer.bias.optimize_attr["learning_rate"] == 0.5
    x = helpers.randoms(4, 16)
    np.testing.assert_allclose(layer(x).numpy(), 3 * te.LayerNorm(16)(x).numpy() + 2, atol=1e-5)


def test_a_norm_marks_its_parameters_for_sequence_parallelism():
    marked, plain = te.LayerNorm(16, sequence_parallel=True), te.LayerNorm(16)
    for name in ("weight", "bias"):
        assert getattr(marked, name).sequence_parallel
        assert not getattr(getattr(plain, name), "sequence_parallel", False)


class WeightsInGemms(TorchDispatchMode):
    """Notes the addresses of tensors that torch's operators get, and the operators that copy."""

    def __init__(self):
        super().__init__()
        self.addresses, self.copies = set(), []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        self.addresses.update(each.data_ptr() for each in tensors)
        if "clone" in str(operator) or "copy_" in str(operator):
            self.copies.append(str(operator))
        return operator(*args, **(kwargs or {}))


def test_operators_get_the_memory_of_paddles_tensors():
    layer = te.Linear(16, 16)
    x = helpers.randoms(4, 16)
    with WeightsInGemms() as seen:
        layer(x)
    addresses = {each.data_ptr() for each in (x, layer.weight, layer.bias)}
    assert addresses <= seen.addresses
    assert seen.copies == []


# ---------------------------------------------------------------------- norms


@pytest.mark.parametrize(
    "make",
    [
        lambda epsilon, **more: te.LayerNorm(32, epsilon, **more),
        lambda epsilon, **more: te.LayerNormLinear(32, 32, epsilon, **more),
        lambda epsilon, **more: te.LayerNormMLP(32, 64, epsilon, **more),
        lambda epsilon, **more: te.MultiHeadAttention(
            32, 4, 0.0, epsilon, input_layernorm=True, **more
        ),
        lambda epsilon, **more: te.TransformerLayer(
            32, 64, 4, layernorm_epsilon=epsilon, **no_dropout, **more
        ),
    ],
    ids=["LayerNorm", "LayerNormLinear", "LayerNormMLP", "MultiHeadAttention", "TransformerLayer"],
)
def test_epsilon_is_added_to_the_variance(make):
    # The largest epsilon that Paddle's LayerNorm accepts, and inputs with a variance near it.
    layer = make(1e-3)
    others = [make(epsilon, backend="paddle") for epsilon in (1e-3, 1e-5)]
    for other in others:
        for mine, theirs in zip(layer.parameters(), other.parameters(), strict=True):
            theirs.set_value(mine.t() if is_weight(mine) else mine)
    x = inputs() * 0.03
    found, expected, with_less = (each(x).numpy() for each in (layer, *others))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert np.abs(found - with_less).max() > 1e-2


@pytest.mark.parametrize(
    "name",
    ["LayerNormLinear", "LayerNormMLP", "MultiHeadAttention with a norm", "TransformerLayer"],
)
def test_zero_centered_gamma_holds_for_every_norm(name):
    centered, plain = LAYERS[name](zero_centered_gamma=True), LAYERS[name]()
    for (key, each), other in zip(centered.named_parameters(), plain.parameters(), strict=True):
        if key.endswith("ln_weight"):
            assert not each.any()  # 0, which means 1
        else:
            each.set_value(other)
    assert helpers.bits(centered(inputs())) == helpers.bits(plain(inputs()))


# ---------------------------------------------------------------------- micro-batches


@every_layer
def test_every_gemm_keeps_the_first_microbatchs_weight(make):
    layer = make()
    x = inputs()

    def forward(first):
        with te.fp8_autocast(enabled=True, fp8_recipe=Float8CurrentScaling()):
            return helpers.bits(layer(x, is_first_microbatch=first))

    kept = forward(True)
    for each in layer.parameters():
        if is_weight(each):
            each.set_value(paddle.zeros(each.shape))
            assert forward(False) == kept
    assert forward(None) != kept


@every_layer
def test_every_wgrad_is_added_to_main_grad(make):
    layer, plain = make(fuse_wgrad_accumulation=True), make()
    plain.set_state_dict(layer.state_dict())
    for each in layer.parameters():
        if is_weight(each):
            each.main_grad = paddle.ones(each.shape)
    for each in (layer, plain):
        for _ in range(2):
            each(inputs()).square().sum().backward()
    expected = dict(plain.named_parameters())
    for name, each in layer.named_parameters():
        if not is_weight(each):
            continue
        assert each.grad is None
        gradient = expected[name].grad.numpy()
        np.testing.assert_allclose(
            each.main_grad.numpy(), 1 + gradient, rtol=1e-4, atol=1e-4 * np.abs(gradient).max()
        )


def test_a_layer_may_run_twice_in_one_region():
    layer, module = te.Linear(32, 32), torch_te.Linear(32, 32)
    helpers.copy_weights(layer, module)
    recipe = DelayedScaling(reduce_amax=True, amax_history_len=4)
    for seed in range(3):
        mine = inputs(seed)
        other = helpers.to_torch(mine).requires_grad_(True)
        with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
            ours = layer(layer(mine))
        with torch_te.autocast(enabled=True, recipe=recipe):
            theirs = module(module(other))
        ours.sum().backward()
        theirs.sum().backward()
        assert helpers.bits(ours) == helpers.bits(theirs)
        assert helpers.bits(mine.grad) == helpers.bits(other.grad)


# ---------------------------------------------------------------------- attention


ATTENDING = {
    "MultiHeadAttention": (LAYERS["MultiHeadAttention"], "attn_mask_type"),
    "TransformerLayer": (LAYERS["TransformerLayer"], "self_attn_mask_type"),
}
attending = pytest.mark.parametrize("kind", ATTENDING)


@attending
def test_the_mask_type_reaches_attention(kind):
    make, name = ATTENDING[kind]
    x = inputs()
    changed = x.detach().clone()
    changed[:, -1] = 3.0
    mask = paddle.zeros([2, 1, 16, 16], dtype="bool")
    mask[:, :, :, -1] = True
    for mask_type, sees_the_last in (("causal", False), ("padding", False), ("no_mask", True)):
        layer = make(**{name: mask_type})
        first, other = (layer(each, mask)[:, :-1] for each in (x, changed))
        assert (helpers.bits(first) != helpers.bits(other)) == sees_the_last, mask_type
    # Without a mask tensor, 'padding' masks nothing.
    layer = make(**{name: "padding"})
    assert helpers.bits(layer(x)[:, :-1]) != helpers.bits(layer(changed)[:, :-1])


@attending
def test_set_zero_changes_nothing_in_layers_around_attention(kind):
    layer = ATTENDING[kind][0]()
    assert helpers.bits(layer(inputs())) == helpers.bits(layer(inputs(), set_zero=False))


@attending
def test_rotary_embedding_reaches_attention(kind):
    layer = ATTENDING[kind][0]()
    module = {
        "MultiHeadAttention": torch_te.MultiheadAttention,
        "TransformerLayer": torch_te.TransformerLayer,
    }[kind]
    options = {"attention_dropout": 0.0, "fuse_qkv_params": True}
    if kind == "MultiHeadAttention":
        other = module(32, 4, qkv_format="bshd", **options)
    else:
        other = module(32, 64, 4, hidden_dropout=0.0, attn_input_format="bshd", **options)
    helpers.copy_weights(layer, other)
    x, angles = inputs(), torch_te.RotaryPositionEmbedding(8)(16)
    expected = other(helpers.to_torch(x), rotary_pos_emb=angles).detach().numpy()
    found = layer(x, rotary_pos_emb=te.RotaryPositionEmbedding(8, 4)(16)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert np.abs(found - layer(x).numpy()).max() > 1e-3


@attending
def test_recomputing_core_attention_is_asked_for_and_changes_no_bit(kind, monkeypatch):
    from telens.paddle import multi_head_attention

    calls = []
    recompute = multi_head_attention.recompute
    monkeypatch.setattr(
        multi_head_attention, "recompute", lambda *a: calls.append(a) or recompute(*a)
    )
    layer = ATTENDING[kind][0]()
    found = []
    for again in (False, True):
        x = inputs()
        layer(x, recompute_core_attention=again).square().sum().backward()
        found.append(helpers.bits(x.grad))
        assert len(calls) == again
    assert found[0] == found[1]


def test_the_rate_of_attentions_dropout_reaches_it():
    layer = te.TransformerLayer(32, 64, 4, hidden_dropout=0.0, attention_dropout=0.5)
    drawn = []
    for seed in (1, 1, 2):
        paddle.seed(seed)
        drawn.append(helpers.bits(layer(inputs())))
    assert drawn[0] == drawn[1] != drawn[2]


def test_final_norm_normalizes_the_output():
    layer = te.TransformerLayer(32, 64, 4, output_layernorm=True, **no_dropout)
    out = layer(inputs()).numpy()
    np.testing.assert_allclose(out.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(out.var(-1), 1, atol=1e-3)
