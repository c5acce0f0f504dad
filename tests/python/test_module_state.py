"""State of modules: state_dict, copies, pickles, dtype, swapped parameters."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch

import telens
import telens.pytorch as te


def make_layer() -> te.TransformerLayer:
    torch.manual_seed(1)
    return te.TransformerLayer(32, 64, 2, hidden_dropout=0, attention_dropout=0, name="block")


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randn(16, 2, 32)


def train_in_fp8(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    with te.autocast():
        out = layer(x)
    out.sum().backward()
    return out.detach()


def test_a_state_dict_carries_over_to_another_module(x):
    layer, other = make_layer(), te.TransformerLayer(32, 64, 2, hidden_dropout=0)
    other.load_state_dict(layer.state_dict())
    other.eval()
    layer.eval()
    assert torch.equal(layer(x), other(x))


def test_load_state_dict_with_assign_uses_the_assigned_tensors(x):
    layer = make_layer()
    layer(x)
    state = {k: v * 2 if v.is_floating_point() else v for k, v in layer.state_dict().items()}
    layer.load_state_dict(state, assign=True)
    fresh = make_layer()
    fresh.load_state_dict(state)
    assert torch.equal(layer(x), fresh(x))
    layer(x).sum().backward()
    assert layer.self_attention.proj.weight.grad is not None


def test_a_checkpoint_of_plain_torch_modules_loads():
    layer, plain = te.Linear(16, 16), torch.nn.Linear(16, 16)
    assert layer.load_state_dict(plain.state_dict()) == ([], [])
    assert torch.equal(layer.weight, plain.weight)


def test_extra_state_carries_amax_histories_and_scales(x):
    layer, other = make_layer(), make_layer()
    assert not any("_extra_state" in key for key in layer.state_dict())
    train_in_fp8(layer, x)
    state = layer.state_dict()
    assert state["layernorm_mlp._extra_state"].dtype == torch.uint8
    assert state["layernorm_mlp._extra_state"].numel() > 0
    other.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(train_once(layer, x), train_once(other, x))


def train_once(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    with te.autocast():
        return layer(x)


def test_peer_extra_state_is_ignored_with_a_warning():
    layer = te.Linear(16, 16)
    foreign = torch.frombuffer(bytearray(pickle.dumps({"scale_fwd": 1})), dtype=torch.uint8)
    with pytest.warns(UserWarning, match="amax histories and scales start from their"):
        layer.load_state_dict(te.Linear(16, 16).state_dict() | {"_extra_state": foreign})


def test_peer_extra_state_may_be_a_byte_stream():
    layer = te.Linear(16, 16)
    with pytest.warns(UserWarning, match="amax histories and scales start from their"):
        layer.set_extra_state(io.BytesIO(pickle.dumps({"scale_fwd": 1})))


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (te.LayerNormMLP, te.Linear, "the states of 2 layers; expected the state of one"),
        (te.Linear, te.LayerNormMLP, "the states of 1 layer; expected 2"),
    ],
)
def test_the_extra_state_of_a_module_with_other_gemms_is_refused(source, target, words):
    written, read = source(32, 32), target(32, 32)
    for module in (written, read):
        with te.autocast(enabled=True):
            module(torch.ones(16, 32)).sum().backward()
    before = read.get_extra_state()
    with pytest.raises(telens.UsageError, match=words):
        read.set_extra_state(written.get_extra_state())
    assert torch.equal(read.get_extra_state(), before)


@pytest.mark.parametrize("state", ["abc", 3, [1, 2], b"abc", {"scale": 1}])
def test_extra_state_that_is_not_a_tensor_is_rejected(state):
    with pytest.raises(
        telens.UsageError, match=r"Linear\.set_extra_state: state must be a tensor of uint8"
    ):
        te.Linear(16, 16).set_extra_state(state)


@pytest.mark.parametrize("state", [torch.ones(8), torch.ones(2, 4, dtype=torch.uint8)])
def test_an_extra_state_of_another_kind_of_tensor_is_refused(state):
    with pytest.raises(telens.UsageError, match="expected uint8 with 1"):
        te.Linear(16, 16).set_extra_state(state)


def test_a_deep_copy_computes_the_same_and_shares_nothing(x):
    layer = make_layer()
    train_in_fp8(layer, x)
    layer.zero_grad()
    clone = copy.deepcopy(layer)
    assert torch.equal(clone(x), layer(x))
    assert torch.equal(train_once(clone, x), train_once(layer, x))
    with torch.no_grad():
        clone.self_attention.proj.weight.zero_()
    assert not torch.equal(clone(x), layer(x))
    clone(x).sum().backward()
    assert layer.self_attention.proj.weight.grad is None


def test_deep_copy_of_a_child_is_independent(x):
    layer = make_layer()
    child = copy.deepcopy(layer.self_attention.layernorm_qkv)
    assert torch.equal(child(x), layer.self_attention.layernorm_qkv(x))


def test_a_deep_copy_draws_no_random_numbers():
    layer = make_layer()
    before = torch.get_rng_state()
    copy.deepcopy(layer)
    assert torch.equal(before, torch.get_rng_state())


def test_a_pickle_computes_the_same_and_keeps_the_name(x):
    layer = make_layer()
    train_in_fp8(layer, x)
    clone = pickle.loads(pickle.dumps(layer))
    assert torch.equal(train_once(clone, x), train_once(layer, x))
    assert clone.name == "block"


def test_a_whole_module_goes_through_torch_save(x):
    layer, file = make_layer(), io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), layer(x))


def test_a_state_dict_goes_through_torch_save_with_weights_only(x):
    layer, file = make_layer(), io.BytesIO()
    train_in_fp8(layer, x)
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = make_layer()
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(train_once(other, x), train_once(layer, x))


def test_to_changes_the_dtype_that_the_core_computes_in(x):
    layer = make_layer()
    layer(x)
    layer.to(torch.bfloat16)
    out = layer(x.bfloat16())
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert layer.self_attention.proj.weight.grad.dtype == torch.bfloat16


def test_swap_tensors_on_conversion_is_noticed(x):
    layer = make_layer()
    layer(x)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        layer.to(torch.bfloat16)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert layer(x.bfloat16()).dtype == torch.bfloat16


def test_functional_call_uses_the_given_tensors_for_one_call(x):
    layer = make_layer()
    before = layer(x)
    doubled = {name: p * 2 for name, p in layer.named_parameters()}
    changed = torch.func.functional_call(layer, doubled, (x,))
    assert not torch.equal(changed, before)
    changed.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    assert torch.equal(layer(x), before)


def test_functional_call_leaves_no_graph_in_the_modules_inside():
    layer = te.TransformerLayer(32, 64, 2, hidden_dropout=0, attention_dropout=0)
    layer(torch.randn(16, 2, 32))
    doubled = {name: p * 2 for name, p in layer.named_parameters()}
    inner = weakref.ref(doubled["layernorm_mlp.fc1_weight"])
    torch.func.functional_call(layer, doubled, (torch.randn(16, 2, 32),))
    del doubled
    gc.collect()
    assert inner() is None


def test_tied_weights_stay_tied():
    first, second = te.Linear(16, 16), te.Linear(16, 16)
    second.weight = first.weight
    model = torch.nn.Sequential(first, second)
    assert len(list(model.parameters())) == 3
    model(torch.ones(4, 16)).sum().backward()
    with torch.no_grad():
        first.weight.zero_()
    assert torch.equal(second(torch.ones(4, 16)), second.bias.expand(4, 16))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda **o: te.Linear(16, 16, **o),
        lambda **o: te.LayerNormLinear(16, 16, **o),
        lambda **o: te.LayerNormMLP(16, 32, **o),
        lambda **o: te.GroupedLinear(2, 16, 16, **o),
        lambda **o: te.MultiheadAttention(16, 2, **o),
        lambda **o: te.TransformerLayer(16, 32, 2, **o),
    ],
)
def test_bias_is_a_tensor_and_use_bias_the_option(make, bias):
    module = make(bias=bias)
    for each in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert each.use_bias is bias
        assert not isinstance(getattr(each, "bias", None), bool)
    state = module.__getstate__() | {"bias": bias}  # as former pickles have it
    former = type(module).__new__(type(module))
    former.__setstate__({name: v for name, v in state.items() if name != "use_bias"})
    assert former.use_bias is bias
    assert not isinstance(getattr(former, "bias", None), bool)


def test_initialization_by_class_name_finds_no_flags():
    """Hugging Face's models zero ``bias`` of every module with LayerNorm in its name."""

    def initialize(module: torch.nn.Module) -> None:
        if "LayerNorm" in type(module).__name__ and getattr(module, "bias", None) is not None:
            torch.nn.init.zeros_(module.bias)

    te.TransformerLayer(16, 32, 2).apply(initialize)
