"""Arguments of LayerNormMLP: composed activations, recomputation, and split parameters by name."""

import copy
import pickle

import pytest
import torch

import telens
import telens.pytorch as te
from telens.common import recipe as recipes

FORMULAS = {
    "glu": lambda a, b, **_: a.sigmoid() * b,
    "clamped_swiglu": lambda a, b, limit=7.0, alpha=1.702, glu_linear_offset=1.0: (
        a.clamp(max=limit)
        * (alpha * a.clamp(max=limit)).sigmoid()
        * (b.clamp(-limit, limit) + glu_linear_offset)
    ),
}
PARAMETERS = [None, {"limit": 0.5}, {"limit": 0.5, "alpha": 1.0, "glu_linear_offset": 0.0}]


def drawn(*sizes, seed=1):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("parameters", PARAMETERS)
def test_composed_activations_are_their_formulas(activation, parameters):
    if activation == "glu":
        parameters = None
    torch.manual_seed(1)
    mlp = te.LayerNormMLP(
        32, 64, activation=activation, activation_params=parameters, params_dtype=torch.float64,
        device="cpu", init_method=lambda weight: weight.normal_(0, 0.5),
    )  # fmt: skip
    x = drawn(5, 32).double().requires_grad_()
    mlp(x).sin().sum().backward()
    other = x.detach().clone().requires_grad_()
    weights = {name: p.detach().clone().requires_grad_() for name, p in mlp.named_parameters()}
    hidden = torch.nn.functional.layer_norm(
        other, (32,), weights["layer_norm_weight"], weights["layer_norm_bias"]
    )
    inner = torch.nn.functional.linear(hidden, weights["fc1_weight"], weights["fc1_bias"])
    acted = FORMULAS[activation](*inner.chunk(2, -1), **(parameters or {}))
    assert inner.abs().max() > 0.5, "some are clamped"
    out = torch.nn.functional.linear(acted, weights["fc2_weight"], weights["fc2_bias"])
    out.sin().sum().backward()
    torch.testing.assert_close(mlp(x), out)
    torch.testing.assert_close(x.grad, other.grad)
    for name, parameter in mlp.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad)


@pytest.mark.parametrize("recipe", [recipes.DelayedScaling, recipes.MXFP8BlockScaling])
def test_composed_activations_train_in_fp8_inside_a_transformer_layer(recipe):
    torch.manual_seed(1)
    layer = te.TransformerLayer(
        32, 64, 2, activation="clamped_swiglu", activation_params={"limit": 2.0}, device="cpu",
        params_dtype=torch.bfloat16, hidden_dropout=0, attention_dropout=0,
    )  # fmt: skip
    assert layer.layernorm_mlp.activation_params == {"limit": 2.0}
    x = drawn(16, 2, 32).bfloat16().requires_grad_()
    outs = []
    for enabled in (False, True):
        with te.fp8_autocast(enabled, fp8_recipe=recipe()):
            outs.append(layer(x))
        outs[-1].sum().backward()
    assert (outs[0] - outs[1]).abs().max() < 0.2
    assert x.grad.isfinite().all()
    assert pickle.loads(pickle.dumps(layer)).activation_params == {"limit": 2.0}


@pytest.mark.parametrize(
    ("activation", "parameters", "message"),
    [
        ("swish", None, "expected one of gelu, .*, swiglu, glu, clamped_swiglu"),
        ("swiglu", {"limit": 7.0}, "limit=7 does not go with activation 'swiglu'"),
        ("clamped_swiglu", {"beta": 1.0}, "beta=1 does not go with activation 'clamped_swiglu'"),
        ("clamped_swiglu", {"limit": -1.0}, "limit=-1 does not go .* limit .above 0."),
    ],
)
def test_unknown_activations_and_parameters_are_named(activation, parameters, message):
    with pytest.raises(telens.UsageError, match=message):
        te.LayerNormMLP(32, 64, activation=activation, activation_params=parameters)
    with pytest.raises(TypeError, match="activation_params"):
        te.LayerNormMLP(32, 64, activation_params={"limit": "high"})


def kept_bytes(layer, x):
    """The bytes that autograd keeps of a forward."""
    seen = []

    def pack(tensor):
        seen.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layer(x)
    return sum(seen), out


@pytest.mark.parametrize("recipe", [None, recipes.DelayedScaling])
def test_a_checkpointed_mlp_keeps_less_and_has_the_same_bits(recipe):
    torch.manual_seed(1)
    plain = te.LayerNormMLP(32, 128, device="cpu")
    torch.manual_seed(1)
    kept = te.LayerNormMLP(32, 128, device="cpu", checkpoint=True)
    assert kept.checkpoint
    results = []
    for layer in (plain, kept, copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        layer.zero_grad()
        x = drawn(16, 32).requires_grad_()
        for _ in range(2):  # the second under scales of the first
            with te.fp8_autocast(recipe is not None, fp8_recipe=recipe() if recipe else None):
                size, out = kept_bytes(layer, x)
            out.square().sum().backward()
        results.append((size, out, x.grad, layer.fc1_weight.grad, layer.fc2_weight.grad))
    for other in results[1:]:
        assert other[0] < results[0][0] / 4
        for a, b in zip(results[0][1:], other[1:], strict=True):
            assert torch.equal(a, b)
    with torch.no_grad():
        assert torch.equal(plain(x), kept(x))


@pytest.mark.parametrize("make", [te.Linear, te.LayerNormLinear])
@pytest.mark.parametrize("names", [("q", "k", "v"), ["q", "k", "v"]])
def test_parts_given_by_name_only_are_equal(make, names):
    layer = make(32, 48, parameters_split=names, device="cpu")
    assert layer.parameters_split == {"q": 16, "k": 16, "v": 16}
    assert [layer.get_parameter(f"{name}_weight").shape for name in names] == [(16, 32)] * 3
    assert copy.deepcopy(layer).parameters_split == layer.parameters_split
    with pytest.raises(telens.UsageError, match=r"names 3 equal parts, which do not divide .*, 32"):
        make(32, 32, parameters_split=names)
    for sizes in ({"q": 0, "k": 0, "v": 0}, {"q": -8, "k": 28, "v": 28}):
        with pytest.raises(
            telens.UsageError, match=r"'q' of parameters_split has -?\d rows; expected 1 or more"
        ):
            make(32, 48, parameters_split=sizes)
    with pytest.raises(TypeError, match="parameters_split"):
        make(32, 32, parameters_split=(1, 2))
    with pytest.raises(TypeError, match=r"parameters_split\['k'\]' must be int, not NoneType"):
        make(32, 32, parameters_split={"q": 16, "k": None})
