"""Names of layers: from an argument, from their parents, from the structure of a model."""

import nvdlfw_inspect.api as peer
import pytest
import torch
from debug_helpers import Scalars, logging_of
from nvdlfw_inspect.logging import initialize_logger

import telens.debug as debug
import telens.pytorch as te

X = torch.randn(16, 1, 32, generator=torch.Generator().manual_seed(1))


def layers_of(model, tmp_path) -> set[str]:
    """Returns the names under which the layers of a model are watched."""
    scalars = Scalars()
    with debug.session(
        logging_of("activation", ["max"]), statistics_logger=scalars, log_dir=tmp_path
    ):
        model(X)
        debug.step()
    return {name.removesuffix("_activation_max") for name in scalars.names()}


def test_a_layernorm_mlp_is_two_layers(tmp_path):
    assert layers_of(te.LayerNormMLP(32, 64, name="mlp"), tmp_path) == {"mlp.fc1", "mlp.fc2"}


def test_a_named_transformer_layer_passes_its_name_on(tmp_path):
    layer = te.TransformerLayer(32, 64, 2, name="block", fuse_qkv_params=True, layer_type="decoder")
    assert layers_of(lambda x: layer(x, encoder_output=x), tmp_path) == {
        "block.self_attention.layernorm_linear_qkv",
        "block.self_attention.proj",
        "block.inter_attention.layernorm_linear_q",
        "block.inter_attention.linear_kv",
        "block.inter_attention.proj",
        "block.layernorm_mlp.fc1",
        "block.layernorm_mlp.fc2",
    }


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"input_layernorm": True}, {"layernorm_linear_qkv", "proj"}),
        ({}, {"linear_qkv", "proj"}),
        (
            {"input_layernorm": True, "attention_type": "cross"},
            {"layernorm_linear_q", "linear_kv", "proj"},
        ),
        ({"attention_type": "cross"}, {"linear_q", "linear_kv", "proj"}),
    ],
)
def test_a_named_attention_passes_its_name_on(tmp_path, options, names):
    attention = te.MultiheadAttention(32, 2, name="attention", fuse_qkv_params=True, **options)
    call = {"encoder_output": X} if "attention_type" in options else {}
    watched = layers_of(lambda x: attention(x, **call), tmp_path)
    assert watched == {f"attention.{name}" for name in names}


class Model(torch.nn.Module):
    """A model as users of Transformer Engine write it."""

    def __init__(self, numbers=(None, None)):
        super().__init__()
        self.embedding = torch.nn.Embedding(8, 32)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in numbers)
        for block, number in zip(self.blocks, numbers, strict=True):
            if number is not None:
                block.layer_number = number
        self.head = torch.nn.Sequential(torch.nn.LayerNorm(32), torch.nn.Linear(32, 8))


def names_in(model: torch.nn.Module) -> dict[str, str | None]:
    return {key: getattr(module, "name", None) for key, module in model.named_modules()}


@pytest.fixture(scope="module", autouse=True)
def peer_logger(tmp_path_factory):
    initialize_logger(str(tmp_path_factory.mktemp("peer")))


@pytest.mark.parametrize("numbers", [(None, None), (4, 5), (None, 7)])
def test_inferred_names_match_the_peer(numbers):
    ours, theirs = Model(numbers), Model(numbers)
    debug.infer_and_assign_layer_names(ours)
    peer.infer_and_assign_layer_names(theirs)
    ours.blocks.name = None  # the peer leaves lists of modules without one
    assert names_in(ours) == names_in(theirs)


def test_layers_that_have_a_name_keep_it_if_so_wished():
    layer = te.TransformerLayer(32, 64, 2, name="first", device="cpu")
    named = {key: module.name for key, module in layer.named_modules() if module.name}
    unnamed = te.TransformerLayer(32, 64, 2, device="cpu")
    unnamed.self_attention.proj.set_debug_name("own")
    model = torch.nn.Sequential(layer, te.LayerNorm(32, device="cpu"), unnamed)
    debug.infer_and_assign_layer_names(model, keep_names=True)
    found = names_in(model)
    assert found["1"] == "model.1"
    assert found["2.self_attention"] == "model.2.self_attention"
    assert found["2.self_attention.proj"] == "own"
    assert found["0.self_attention.proj"] == "first.self_attention.proj"
    for key, name in named.items():
        assert found[f"0.{key}" if key else "0"] == name
    debug.infer_and_assign_layer_names(model)
    assert model[0].name == "model.0"


def test_a_layer_number_of_none_counts_as_none():
    model = Model()
    for block in model.blocks:
        block.layer_number = None
    debug.infer_and_assign_layer_names(model)
    assert [block.name for block in model.blocks] == ["model.blocks.0", "model.blocks.1"]
    theirs = Model()
    for block in theirs.blocks:
        block.layer_number = None
    peer.infer_and_assign_layer_names(theirs)
    assert [block.name for block in theirs.blocks] == ["model.blocks.None", "model.blocks.None"]


def test_a_list_of_models_is_named_one_by_one():
    chunks = [Model(), Model()]
    debug.infer_and_assign_layer_names(chunks)
    assert [chunk.head[1].name for chunk in chunks] == ["model.head.1", "model.head.1"]


def test_a_wrapper_adds_module():
    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    wrapped = Wrapper(te.Linear(32, 32))
    debug.infer_and_assign_layer_names(wrapped)
    assert wrapped.module.name == "model.module"
