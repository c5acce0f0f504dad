"""module.fp8_meta and module.quantizers: the FP8 state as scripts of Transformer Engine read it."""

import copy
import pickle

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling, Format, MXFP8BlockScaling

RECIPE = DelayedScaling(amax_history_len=4)
E4M3_MAX, E5M2_MAX = 448.0, 57344.0


def run(module, x, recipe=RECIPE, **call):
    """Runs one forward and backward; returns the results."""
    with te.autocast(recipe=recipe):
        out = module(x, **call)
    out = out[0] if isinstance(out, tuple) else out
    out.sum().backward()
    return out


@pytest.fixture
def layer():
    torch.manual_seed(1)
    return te.Linear(32, 48, device="cpu")


@pytest.fixture
def x():
    torch.manual_seed(2)
    return torch.randn(16, 32, requires_grad=True)


def test_module_shows_scales_and_amaxes_under_peer_names(layer, x):
    assert "scaling_fwd" not in layer.fp8_meta
    run(layer, x)
    meta = layer.fp8_meta
    assert meta["recipe"] is RECIPE
    assert meta["num_gemms"] == 1
    assert (meta["fp8_max_fwd"], meta["fp8_max_bwd"]) == (E4M3_MAX, E5M2_MAX)
    forward, backward = meta["scaling_fwd"], meta["scaling_bwd"]
    assert forward.amax_history.shape == (4, 3)
    assert backward.amax_history.shape == (4, 2)
    # Input, weight, output: the newest row is that of the iteration that has ended.
    amaxes = [x.abs().max().item(), layer.weight.abs().max().item()]
    assert forward.amax_history[1, :2].tolist() == amaxes
    scales = torch.tensor(E4M3_MAX).div(torch.tensor(amaxes))  # not by a reciprocal
    assert forward.scale.tolist() == [*scales.tolist(), 1.0]
    assert torch.equal(forward.scale_inv, forward.scale.reciprocal())
    assert backward.scale[0].item() == E5M2_MAX  # the gradient of a sum is 1


def test_fp8_meta_is_live_and_the_next_cast_uses_writes(layer, x):
    run(layer, x)
    state = layer.fp8_meta["scaling_fwd"]
    scale, history = state.scale, state.amax_history
    seen = scale.clone()
    run(layer, x * 2)
    assert scale[0] == seen[0] / 2  # the same tensor, of the next iteration
    assert history[1, 0] == 2 * x.abs().max()
    # With this scale all values are clipped to 448 / 2^30.
    with torch.no_grad():
        scale[0] = 2.0**30
    with te.autocast(recipe=RECIPE):
        out = layer(x).detach() * (2.0**30 / E4M3_MAX)
    weight = layer.quantizers["scaling_fwd"][1](layer.weight.detach()).dequantize()
    torch.testing.assert_close(out, torch.sign(x.detach()) @ weight.t(), rtol=1e-4, atol=1e-4)


def test_an_assignment_reaches_the_layer_too(layer, x):
    run(layer, x)
    state = layer.fp8_meta["scaling_fwd"]
    tensor = state.scale
    state.scale = torch.tensor([2.0, 4.0, 8.0])
    assert state.scale is not None
    assert tensor.tolist() == [2.0, 4.0, 8.0]
    assert layer.quantizers["scaling_fwd"][1].scale.item() == 4.0
    layer.quantizers["scaling_fwd"][1].scale = torch.tensor(16.0)
    assert tensor.tolist() == [2.0, 16.0, 8.0]
    state.amax_history = torch.full((4, 3), 7.0)
    assert layer.quantizers["scaling_fwd"][0].amax.item() == 7.0


def test_writing_the_inverse_of_a_scale_sets_the_scale(layer, x):
    run(layer, x)
    state = layer.fp8_meta["scaling_fwd"]
    state.scale_inv.fill_(0.25)
    assert state.scale.tolist() == [4.0, 4.0, 4.0]
    state.scale_inv[1] = 0.5
    state.scale_inv[2:].mul_(4)
    assert state.scale.tolist() == [4.0, 2.0, 1.0]
    # Scripts may set both: the scale keeps all of its bits.
    scale = torch.tensor([3.0, 7.0, 11.0])
    state.scale.copy_(scale)
    state.scale_inv.copy_(1 / scale)
    assert torch.equal(state.scale, scale)


QUARTERS = torch.full((3,), 0.25)
WRITES = {
    "data": lambda inverse: inverse.data.copy_(QUARTERS),
    "detach": lambda inverse: inverse.detach().copy_(QUARTERS),
    "out": lambda inverse: torch.mul(QUARTERS, 1, out=inverse),
    "list": lambda inverse: torch._foreach_copy_([inverse], [QUARTERS]),
    "parts": lambda inverse: [part.fill_(0.25) for part in inverse.unbind()],
    "operator": lambda inverse: inverse.__imul__(0).__iadd__(0.25),
    "overload": lambda inverse: torch.ops.aten.fill_.Scalar(inverse, 0.25),
    "inplace": lambda inverse: torch.nn.functional.threshold(inverse, 1e9, 0.25, inplace=True),
    "initialization": lambda inverse: torch.nn.init.constant_(inverse, 0.25),
    "view of a view": lambda inverse: inverse.view(3, 1).t()[0, :].detach().fill_(0.25),
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("write", WRITES)
def test_every_way_to_write_the_inverse_of_a_scale_sets_the_scale(layer, x, write, mode):
    run(layer, x)
    state = layer.fp8_meta["scaling_fwd"]
    with mode():
        WRITES[write](state.scale_inv)
    assert state.scale.tolist() == [4.0, 4.0, 4.0]


def test_reading_the_inverse_of_a_scale_changes_nothing(layer, x):
    run(layer, x)
    state = layer.fp8_meta["scaling_fwd"]
    scale = state.scale.fill_(3.0)
    inverse, version = state.scale_inv, scale._version
    with torch.inference_mode():
        assert torch.equal(state.scale_inv, torch.full((3,), 3.0).reciprocal())
    doubled = inverse * 2
    assert type(doubled) is torch.Tensor
    doubled.fill_(7)
    assert inverse.shape == (3,)
    assert repr(inverse)
    assert scale._version == version
    # A write to one place of scale_inv does not restore older values at the others.
    scale.fill_(8.0)
    inverse[0] = 0.5
    assert scale.tolist() == [2.0, 8.0, 8.0]


class Operators(TorchDispatchMode):
    """Notes the names of operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_scale_inverse_access_does_not_synchronize(layer, x):
    """Comparing tensors on a GPU makes the host wait, and a graph cannot capture it."""
    run(layer, x)
    inverse = layer.fp8_meta["scaling_fwd"].scale_inv
    with Operators() as reads:
        torch.add(inverse * 2, inverse[0]).sum()
        torch.nn.functional.relu(inverse, inplace=False)
        torch.stack([inverse, inverse.detach().clone()], out=None)
    assert "mul" in reads.names
    assert not {"eq", "ne", "equal", "copy_", "where"} & set(reads.names)
    with Operators() as writes:
        inverse[0] = 0.5
    assert {"ne", "where"} <= set(writes.names)
    assert not {"equal", "is_nonzero", "item", "_local_scalar_dense"} & set(writes.names)


def test_an_inverse_that_is_nan_takes_no_older_value_back(layer, x):
    run(layer, x)
    state = layer.fp8_meta["scaling_fwd"]
    scale = state.scale.fill_(torch.nan)
    inverse = state.scale_inv
    scale.fill_(8.0)
    inverse[0] = 0.5
    assert scale.tolist() == [2.0, 8.0, 8.0]
    inverse[0] = torch.nan
    assert scale[0].isnan()
    assert scale[1:].tolist() == [8.0, 8.0]


def test_quantizers_are_the_layers_in_slot_order(layer, x):
    assert layer.quantizers == {"scaling_fwd": [], "scaling_bwd": []}
    run(layer, x)
    forward = layer.quantizers["scaling_fwd"]
    backward = layer.quantizers["scaling_bwd"]
    assert [each.dtype for each in forward] == [te.DType.kFloat8E4M3] * 3
    assert [each.dtype for each in backward] == [te.DType.kFloat8E5M2] * 2
    meta = layer.fp8_meta
    for key, quantizers in (("scaling_fwd", forward), ("scaling_bwd", backward)):
        for index, quantizer in enumerate(quantizers):
            assert quantizer.scale.data_ptr() == meta[key].scale[index].data_ptr()
            assert quantizer.amax.data_ptr() == meta[key].amax_history[0, index].data_ptr()


@pytest.mark.parametrize(
    ("make", "call", "gemms"),
    [
        (lambda: te.LayerNormLinear(32, 32, device="cpu"), {}, 1),
        (lambda: te.LayerNormMLP(32, 64, device="cpu"), {}, 2),
        (lambda: te.GroupedLinear(3, 32, 32, device="cpu"), {"m_splits": [16, 32, 16]}, 3),
    ],
)
def test_the_slots_of_a_module_with_several_gemms_follow_each_other(make, call, gemms):
    torch.manual_seed(3)
    module = make()
    x = torch.randn(64, 32, requires_grad=True)
    run(module, x, **call)
    meta = module.fp8_meta
    assert meta["num_gemms"] == gemms
    assert meta["scaling_fwd"].amax_history.shape == (4, 3 * gemms)
    assert meta["scaling_bwd"].scale.shape == (2 * gemms,)
    weights = [each for each in module.parameters() if each.dim() == 2]
    found = meta["scaling_fwd"].amax_history[1, 1::3]
    assert torch.equal(found, torch.stack([each.detach().abs().max() for each in weights]))
    # Moves a history row back and computes a scale, slot by slot.
    run(module, x, **call)
    assert torch.equal(meta["scaling_fwd"].amax_history[2, 1::3], found)
    assert torch.equal(meta["scaling_fwd"].scale[1::3], torch.tensor(E4M3_MAX).div(found))


def test_the_joined_windows_are_saved_and_loaded_bit_by_bit():
    def make():
        torch.manual_seed(4)
        return te.LayerNormMLP(32, 64, device="cpu")

    x = torch.randn(16, 32, requires_grad=True)
    first, second = make(), make()
    for _ in range(3):
        run(first, x)
    second.load_state_dict(first.state_dict())
    assert torch.equal(run(first, x), run(second, x))
    for key in ("scaling_fwd", "scaling_bwd"):
        ours, others = first.fp8_meta[key], second.fp8_meta[key]
        assert torch.equal(ours.scale, others.scale)
        assert torch.equal(ours.amax_history, others.amax_history)


def test_history_length_follows_the_recipe_and_keeps_newest_rows(layer, x):
    run(layer, x)
    state = layer.fp8_meta["scaling_fwd"]
    newest = state.amax_history[1].clone()
    run(layer, x, DelayedScaling(amax_history_len=8))
    assert state.amax_history.shape == (8, 3)
    assert torch.equal(state.amax_history[2], newest)


@pytest.mark.parametrize("recipe", [Float8CurrentScaling(), MXFP8BlockScaling()])
def test_recipe_without_histories_shows_only_quantizers(recipe):
    torch.manual_seed(5)
    layer = te.Linear(32, 32, device="cpu")
    run(layer, torch.randn(32, 32, requires_grad=True), recipe)
    meta = layer.fp8_meta
    assert meta["recipe"] is recipe
    state = meta["scaling_fwd"]
    assert state.mode == "forward"
    assert state.num_quantizers == 3
    assert state.recipe is recipe
    for name in ("scale", "scale_inv", "amax_history"):
        assert not hasattr(state, name)
        with pytest.raises(AttributeError, match=f"keeps no {name}: only delayed scaling"):
            getattr(state, name)
    assert len(layer.quantizers["scaling_fwd"]) == 3
    assert len(layer.quantizers["scaling_bwd"]) == 2


def test_copy_has_a_separate_state(layer, x):
    run(layer, x)
    layer.fp8_meta["mine"] = 1
    assert layer.fp8_meta["mine"] == 1
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other.fp8_meta["scaling_fwd"].scale, layer.fp8_meta["scaling_fwd"].scale)
        other.fp8_meta["scaling_fwd"].scale.fill_(3)
        assert layer.fp8_meta["scaling_fwd"].scale[0] != 3


def test_recipe_format_applies_to_both_directions(layer, x):
    run(layer, x, DelayedScaling(fp8_format=Format.E4M3))
    assert layer.fp8_meta["fp8_max_bwd"] == E4M3_MAX
    assert layer.fp8_meta["scaling_bwd"].dtype == te.DType.kFloat8E4M3
