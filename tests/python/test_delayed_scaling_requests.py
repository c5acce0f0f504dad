"""DelayedScalingRequest: for these tensors of a CustomRecipe the layer keeps histories and
scales.
"""

import copy

import graphed_cases as cases
import pytest
import torch
from recorded_graphs import RecordedGraphs
from same_tensors import assert_same

import telens
import telens.pytorch as te
from telens.common.recipe import CustomRecipe, DelayedScaling, Format, IdentityQuantizer
from telens.pytorch import graph

E4M3, E5M2 = te.DType.kFloat8E4M3, te.DType.kFloat8E5M2
LAYERS = {
    "Linear": lambda: te.Linear(64, 64, device="cpu"),
    "LayerNormMLP": lambda: te.LayerNormMLP(64, 64, device="cpu"),
    "GroupedLinear": lambda: te.GroupedLinear(2, 64, 64, device="cpu"),
}
OPTIONS = {
    "defaults": {},
    "options": {"margin": 1, "amax_history_len": 2, "amax_compute_algo": "most_recent"},
    "E4M3": {"fp8_format": Format.E4M3, "amax_history_len": 3},
    "functions": {
        "amax_compute_algo": lambda history: history.amax(0) * 2,
        "scaling_factor_compute_algo": lambda amax, scale, largest, recipe: largest / (amax + 1),
        "amax_history_len": 2,
    },
}


def make(name):
    torch.manual_seed(1)
    return LAYERS[name]()


def custom(**options) -> CustomRecipe:
    request = te.DelayedScalingRequest(**options)
    return CustomRecipe(qfactory=lambda role: request)


def train(layer, recipe, steps=3, call=None):
    """Returns outputs and gradients of some steps, and the final state of the layer."""
    seen = []
    for step in range(steps):
        torch.manual_seed(10 + step)
        x = (torch.randn(32, 64) * 3**step).requires_grad_()
        splits = [[16, 16]] if isinstance(layer, te.GroupedLinear) else []
        layer.zero_grad()
        with te.autocast(recipe=recipe):
            out = (call or layer)(x, *splits)
        out.square().mean().backward()
        seen += [out.detach().clone(), x.grad, *(p.grad.clone() for p in layer.parameters())]
    return [*seen, layer.get_extra_state()]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_requests_for_all_tensors_equal_delayed_scaling(name, options):
    plain, requested, recipe = make(name), make(name), custom(**options)
    expected, found = train(plain, DelayedScaling(**options)), train(requested, recipe)
    assert requested.fp8_meta["recipe"] is recipe
    assert_same(found, expected)
    for direction in ("scaling_fwd", "scaling_bwd"):
        for attribute in ("scale", "amax_history"):
            of_plain = getattr(plain.fp8_meta[direction], attribute)
            assert torch.equal(getattr(requested.fp8_meta[direction], attribute), of_plain)
    assert plain.fp8_meta["scaling_fwd"].scale[0] != 1


def only_weights(role):
    if role.tensor_type == "weight":
        return te.DelayedScalingRequest(amax_history_len=1)
    return te.Float8CurrentScalingQuantizer(E5M2 if role.tensor_type == "grad_output" else E4M3)


def test_other_tensors_keep_their_own_quantizers():
    layer, recipe = make("Linear"), CustomRecipe(qfactory=only_weights)
    scale = 1.0
    for step in range(3):
        x = (torch.randn(16, 64) * 5**step).requires_grad_()
        with te.autocast(recipe=recipe):
            out = layer(x)
        weight = te.Float8Quantizer(torch.tensor([scale]), torch.zeros(1), E4M3)(layer.weight)
        activation = te.Float8CurrentScalingQuantizer(E4M3)(x.detach())
        a, b = activation.dequantize().double(), weight.detach().dequantize().double()
        error = (out.double() - layer.bias.double() - a @ b.t()).abs()
        assert (error <= (a.abs() @ b.abs().t()) * 2.0**-16 + 2.0**-16 * out.abs()).all()
        scale = 448 / layer.weight.abs().max().item()
        assert layer.fp8_meta["scaling_fwd"].scale.tolist() == pytest.approx([1, scale, 1])
        with torch.no_grad():
            layer.weight.mul_(3)
    own = layer.quantizers["scaling_fwd"]
    assert own[1].scale.data_ptr() == layer.fp8_meta["scaling_fwd"].scale[1:].data_ptr()
    assert isinstance(own[0], te.Float8CurrentScalingQuantizer)


def test_state_checkpoint_resumes_exactly():
    recipe = custom(amax_history_len=4)
    layer = make("Linear")
    train(layer, recipe)
    other = make("Linear")
    other.load_state_dict(layer.state_dict())
    deep = copy.deepcopy(layer)
    expected = train(layer, recipe)
    for each in (other, deep):
        assert_same(train(each, recipe), expected)
    assert not torch.equal(train(make("Linear"), recipe)[0], expected[0])


def test_recomputation_and_evaluation_leave_no_trace():
    recipe, plain, layer = custom(amax_history_len=2), make("Linear"), make("Linear")
    expected = train(plain, recipe)
    found = train(layer, recipe, call=lambda *args: te.checkpoint(layer, *args))
    assert_same(found, expected)
    with te.autocast(recipe=recipe), torch.no_grad():
        layer(torch.full((16, 64), 1e4))
    assert torch.equal(layer.get_extra_state(), expected[-1])


def test_graphs_update_the_scales_too(monkeypatch):
    recorded, recipe = RecordedGraphs(), custom(amax_history_len=4)
    expected = cases.train(cases.make_layers("cpu"), recipe, "cpu")
    monkeypatch.setattr(graph, "_graphs_for", lambda runners: recorded)
    layers = cases.make_layers("cpu")
    cases.graphed(layers, recipe, "cpu")
    cases.assert_same(cases.train(layers, recipe, "cpu"), expected)


def test_requests_that_differ_are_errors_by_name():
    def differ(role):
        return te.DelayedScalingRequest(margin=int(role.tensor_type == "weight"))

    def lengths(role):
        return te.DelayedScalingRequest(amax_history_len=4 if "fc1" in role.name else 8)

    layer, twin, x = make("Linear"), make("Linear"), torch.randn(16, 64)
    known = custom(amax_history_len=4)
    for each in (layer, twin):
        train(each, known)
    before = kept_by(layer)
    for module, factory, message in (
        (layer, differ, "returned different DelayedScalingRequests for tensors of a layer"),
        (
            te.LayerNormMLP(64, 64, device="cpu", name="mlp"),
            lengths,
            "an amax_history_len of 8 for .*mlp.fc2.*, and of 4 before",
        ),
        (layer, lambda role: te.DelayedScalingRequest(margin=99), "margin must be between"),
    ):
        recipe = CustomRecipe(qfactory=factory)
        with te.autocast(recipe=recipe), pytest.raises(telens.UsageError, match=message):
            module(x)
    assert_same(kept_by(layer), before)
    assert_same(train(layer, known), train(twin, known))


def kept_by(layer):
    """Returns histories and scales as a checkpoint contains them."""
    metas = [layer.fp8_meta[name] for name in ("scaling_fwd", "scaling_bwd")]
    windows = [each for meta in metas for each in (meta.amax_history, meta.scale)]
    return [each.clone() for each in (*windows, layer.get_extra_state())]


def test_a_recipe_without_requests_shows_no_histories():
    layer = make("Linear")
    train(layer, custom())
    nothing = CustomRecipe(qfactory=lambda role: IdentityQuantizer())
    train(layer, nothing)
    with pytest.raises(AttributeError, match="only delayed scaling has histories"):
        _ = layer.fp8_meta["scaling_fwd"].scale


def test_stored_weight_uses_its_current_amax():
    layers = []
    for recipe in (custom(), DelayedScaling()):
        torch.manual_seed(3)
        with te.fp8_model_init(recipe=recipe):
            layers.append(te.Linear(64, 64, device="cpu"))
    requested, plain = (each.weight for each in layers)
    assert torch.equal(requested._data, plain._data)
    assert torch.equal(requested._scale_inv, plain._scale_inv)
