"""reset_parameters: in place, on meta, for subclasses and shards, with the constructor's values."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.distributed as dist
from distributed_workers import run_ranks
from torch.distributed.fsdp import fully_shard

import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling, MXFP8BlockScaling

MODULES = {
    "Linear": lambda **o: te.Linear(16, 24, **o),
    "split": lambda **o: te.Linear(16, 24, parameters_split={"a": 8, "b": 16}, **o),
    "without bias": lambda **o: te.Linear(16, 24, bias=False, **o),
    "LayerNorm": lambda **o: te.LayerNorm(16, zero_centered_gamma=True, **o),
    "RMSNorm": lambda **o: te.RMSNorm(16, **o),
    "LayerNormLinear": lambda **o: te.LayerNormLinear(16, 24, zero_centered_gamma=True, **o),
    "LayerNormMLP": lambda **o: te.LayerNormMLP(16, 32, normalization="RMSNorm", **o),
    "GroupedLinear": lambda **o: te.GroupedLinear(3, 16, 24, **o),
    "one weight": lambda **o: te.GroupedLinear(
        3, 16, 24, single_grouped_weight=True, single_grouped_bias=True, **o
    ),
    "DotProductAttention": lambda **o: te.DotProductAttention(2, 8, softmax_type="learnable", **o),
    "MultiheadAttention": lambda **o: te.MultiheadAttention(16, 2, qk_norm_type="RMSNorm", **o),
    "TransformerLayer": lambda **o: te.TransformerLayer(16, 32, 2, layer_type="decoder", **o),
}


def spoiled(module: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(7)
    return module


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("meta", [False, True])
def test_reset_matches_the_constructor(name, meta):
    torch.manual_seed(1)
    expected = MODULES[name](device="cpu").state_dict()
    module = MODULES[name](device="meta") if meta else spoiled(MODULES[name](device="cpu"))
    before = dict(module.named_parameters())
    torch.manual_seed(1)
    module.reset_parameters()
    for parameter, value in module.named_parameters():
        assert torch.equal(value, expected[parameter]), parameter
        assert meta or value is before[parameter]


def test_parts_on_meta_get_separate_memory():
    module = MODULES["split"](device="meta")
    module.reset_parameters()
    parts = [module.a_weight, module.b_weight]
    assert [each.untyped_storage().nbytes() for each in parts] == [
        4 * each.numel() for each in parts
    ]
    assert len({each.untyped_storage().data_ptr() for each in parts}) == 2


def test_a_method_of_ones_own_gets_the_parameter_itself():
    seen = []
    layer = te.LayerNormMLP(
        16, 32, init_method=seen.append, output_layer_init_method=seen.append, device="cpu"
    )
    seen.clear()
    layer.reset_parameters()
    assert [each.data_ptr() for each in seen] == [
        layer.fc1_weight.data_ptr(),
        layer.fc2_weight.data_ptr(),
    ]


def test_subclass_resets_itself_and_its_children():
    class Block(te.TransformerLayer):
        def __init__(self, config):
            super().__init__(config["size"], 32, 2, device="meta")
            self.config = config

    class Doubled(te.LayerNormMLP):
        def reset_parameters(self, defer_init=False):
            super().reset_parameters(defer_init)
            with torch.no_grad():
                self.fc1_bias.fill_(2)

    block = Block({"size": 16})
    block.layernorm_mlp = Doubled(16, 32, device="meta")
    block.reset_parameters(defer_init=True)
    assert block.layernorm_mlp.fc1_weight.is_meta
    block.reset_parameters()
    assert not any(p.is_meta for p in block.parameters())
    assert block.layernorm_mlp.fc1_bias.eq(2).all()
    assert block(torch.randn(4, 1, 16)).isfinite().all()


def test_removed_frozen_and_marked_parameters_stay_so():
    layer = te.Linear(16, 16, device="meta")
    layer.bias = None
    layer.weight.requires_grad_(False).mark = 3
    layer.reset_parameters()
    assert layer.bias is None
    assert (layer.weight.requires_grad, layer.weight.mark) == (False, 3)
    assert layer(torch.randn(4, 16)).isfinite().all()


def test_weights_are_drawn_in_the_trackers_fork():
    tracker = te.CudaRNGStatesTracker(device="cpu")
    tracker.add("model-parallel-rng", 5)
    start = tracker.get_states()
    make = lambda: te.TransformerLayer(  # noqa: E731
        16, 32, 2, get_rng_state_tracker=lambda: tracker, device="cpu"
    )
    layer = make()
    expected = copy.deepcopy(layer.state_dict())
    spoiled(layer)
    tracker.set_states(start)
    default = torch.get_rng_state()
    layer.reset_parameters()
    assert torch.equal(torch.get_rng_state(), default)
    assert all(torch.equal(value, expected[name]) for name, value in layer.named_parameters())


@pytest.mark.parametrize("recipe", [Float8CurrentScaling(), MXFP8BlockScaling()])
@pytest.mark.parametrize("meta", [False, True])
def test_weights_that_are_stored_quantized_stay_so(recipe, meta):
    def make(device):
        torch.manual_seed(2)
        with te.fp8_model_init(recipe=recipe, preserve_high_precision_init_val=True):
            return te.Linear(64, 64, device=device)

    expected = make("cpu")
    layer = make("meta") if meta else make("cpu")
    torch.manual_seed(2)
    layer.reset_parameters()
    assert isinstance(layer.weight, te.QuantizedTensor)
    assert torch.equal(layer.weight.dequantize(), expected.weight.dequantize())
    kept = layer.weight.get_high_precision_init_val()
    assert torch.equal(kept, expected.weight.get_high_precision_init_val())


def reset_shards(rank: int, device: str, quantized: bool) -> None:
    def make(device):
        torch.manual_seed(3)
        with te.fp8_model_init(enabled=quantized, recipe=Float8CurrentScaling()):
            return torch.nn.Sequential(
                te.LayerNormLinear(64, 96, device=device), te.LayerNormMLP(96, 64, device=device)
            )

    whole, model = make("cpu"), make(device)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    if device == "cpu":
        spoiled(model)
    torch.manual_seed(3)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    for (name, shard), expected in zip(model.named_parameters(), whole.parameters(), strict=True):
        found = shard.full_tensor()
        if isinstance(expected, te.QuantizedTensor):
            found, expected = found.dequantize(), expected.dequantize()
        assert torch.equal(found, expected), name
    x = torch.randn(8, 64)
    assert torch.equal(model(x), whole(x))
    model(x).sum().backward()


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_fsdp2_shards_come_from_a_common_initialization(device, quantized):
    run_ranks(reset_shards, device, quantized)


def prepared(rank: int) -> None:
    from telens.pytorch.distributed import FullyShardedDataParallel, prepare_te_modules_for_fsdp

    def run(wrap):
        torch.manual_seed(4)
        layers = [te.LayerNormLinear(64, 64, device="cpu"), te.Linear(64, 64, device="cpu")]
        model = wrap(torch.nn.Sequential(*layers))
        with te.autocast(recipe=MXFP8BlockScaling()):
            out = model(torch.randn(32, 64))
        out.square().mean().backward()
        return model, [out, *(p.grad for p in model.parameters() if p.grad is not None)]

    options = {"use_orig_params": True, "device_id": torch.device("cpu")}
    plain = dist.fsdp.FullyShardedDataParallel

    def with_layers_wrapped(model):
        for i, layer in enumerate(model):
            model[i] = FullyShardedDataParallel(layer, **options)
        return FullyShardedDataParallel(model, **options)

    _, expected = run(lambda model: plain(model, **options))
    model, found = run(lambda model: FullyShardedDataParallel(model, **options))
    assert all(map(torch.equal, found, expected))
    model, found = run(with_layers_wrapped)
    assert torch.equal(found[0], expected[0])
    inner = model.module[0].module
    assert inner.fsdp_group is model.module[0].process_group
    assert "fsdp_group" not in copy.deepcopy(te.Linear(4, 4)).__dict__
    with pytest.raises(TypeError, match="fsdp_root must be a FullyShardedDataParallel, not Linear"):
        prepare_te_modules_for_fsdp(te.Linear(4, 4))


def test_prepare_te_modules_for_fsdp_changes_no_value():
    run_ranks(prepared)


# ---------------------------------------------------------------------- copies and pickles


def fill_with_ones(weight):
    weight.fill_(1)


def fill_with_twos(weight):
    weight.fill_(2)


def fill_from_data(weight):
    weight.copy_(torch.full(weight.shape, 3.0))
    assert weight.sum().item() == 3 * weight.numel()  # raises on the device "meta"


def matrices(layer):
    return {name: p for name, p in layer.named_parameters() if p.dim() == 2}


def with_functions():
    functions = {"init_method": fill_with_ones, "output_layer_init_method": fill_with_twos}
    return te.TransformerLayer(16, 32, 2, device="meta", **functions)


@pytest.mark.parametrize("copies", [1, 2])
def test_a_deep_copy_keeps_the_functions_that_fill_weights(copies):
    layer = with_functions()
    for _ in range(copies):
        layer = copy.deepcopy(layer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.reset_parameters()
    output = {"self_attention.proj.weight", "layernorm_mlp.fc2_weight"}
    for name, weight in matrices(layer).items():
        assert (weight == (2 if name in output else 1)).all(), name


def test_a_deep_copy_does_not_call_the_functions():
    layer = te.Linear(16, 16, device="cpu", init_method=fill_from_data)
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        copied.weight.zero_()
    copied.reset_parameters()
    assert (copied.weight == 3).all()


def test_reset_after_unpickling_warns_of_the_lost_function():
    layer = pickle.loads(pickle.dumps(with_functions()))
    with pytest.warns(
        UserWarning, match=r"reset_parameters: the module was unpickled.*init_method"
    ):
        layer.reset_parameters()
    assert all((weight.std() - 0.023).abs() < 0.01 for weight in matrices(layer).values())
    # A copy of an unpickled module does not have the initialization methods either.
    with pytest.warns(UserWarning, match="init_method"):
        copy.deepcopy(layer).reset_parameters()
    plain = pickle.loads(pickle.dumps(te.Linear(16, 16, device="meta")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain.reset_parameters()
