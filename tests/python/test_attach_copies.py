"""telens.watch: copies of the model, and calls of it outside of training steps."""

import copy
import io
import warnings

import pytest
import torch
from attach_helpers import config, recorded
from torch import nn
from torch.func import functional_call, grad, vmap

import telens

AMAX = config(["cur_amax"], ["activation", "weight", "gradient"])
X = torch.randn(8, 4)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def train(model, steps=1):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(X).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def count_hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def count_options(model):
    return sum(
        len(m._forward_hooks_with_kwargs) + len(m._forward_pre_hooks_with_kwargs)
        for m in model.modules()
    )


def save_and_load(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    assert b"telens" not in buffer.getvalue()
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)


@pytest.mark.parametrize("duplicate", [save_and_load, copy.deepcopy, copy.copy])
def test_copies_of_a_watched_model_have_no_hooks(tmp_path, model, duplicate):
    with telens.watch(model, AMAX, tmp_path):
        train(model)
        copied = duplicate(model)
        assert copied is not model
        if duplicate is not copy.copy:  # a shallow copy has the same children
            assert count_hooks(copied) == count_options(copied) == 0
        assert torch.equal(copied(X), model(X))
        train(model)
    assert "__reduce_ex__" not in nn.Module.__dict__
    assert {iteration for _, _, iteration in recorded(tmp_path, "cur_amax")} == {0, 1}


def test_copies_keep_the_hooks_of_the_program(tmp_path, model):
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append("forward"))
    model[0].register_forward_pre_hook(lambda *_: calls.append("before"))
    with telens.watch(model, AMAX, tmp_path):
        copied = copy.deepcopy(model)
        copied(X)
    assert calls == ["before", "forward"]


def test_forwards_of_a_deep_copy_are_not_recorded(tmp_path, model):
    with telens.watch(model, config(["numel"], ["activation"]), tmp_path):
        train(model)
        train(copy.deepcopy(model), steps=3)
        train(model)
    expected = {(layer, "activation", i): X.numel() for layer in ("0", "2") for i in (0, 1)}
    assert recorded(tmp_path, "numel") == expected


@pytest.mark.parametrize(
    "convert",
    [
        torch.jit.script,
        lambda model: torch.jit.trace(model, X),
        lambda model: torch.export.export(model, (X,)).module(),
        lambda model: torch.export.export(model, (X,), strict=True).module(),
    ],
    ids=["script", "trace", "export", "strict export"],
)
def test_conversions_of_a_watched_model_work(tmp_path, model, convert):
    children = [*model]
    with warnings.catch_warnings(), telens.watch(model, AMAX, tmp_path):
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        train(model)
        converted = convert(model)
        assert torch.equal(converted(X), model(X))
        assert "telens" not in str(getattr(converted, "graph", ""))
        train(model)
    assert all(a is b for a, b in zip(children, model, strict=True))
    assert {iteration for _, _, iteration in recorded(tmp_path, "cur_amax")} == {0, 1}


def test_transforms_of_functions_do_not_end_the_watch(tmp_path, model):
    parameters = dict(model.named_parameters())

    def loss(parameters, inputs):
        return functional_call(model, parameters, (inputs,)).square().mean()

    with warnings.catch_warnings(), telens.watch(model, AMAX, tmp_path):
        warnings.simplefilter("error", UserWarning)
        train(model)
        grad(loss)(parameters, X)
        vmap(grad(loss), (None, 0))(parameters, X)
        vmap(model)(X)
        train(model)
    values = recorded(tmp_path, "cur_amax")
    for layer in ("0", "2"):
        for tensor in ("activation", "weight", "gradient"):
            assert {(layer, tensor, 0), (layer, tensor, 1)} <= {*values}


class TestUnusualTensors:
    """Tensors that no statistic can read do not end the recording of others."""

    def test_sparse_gradients_are_skipped(self, tmp_path):
        model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 4))
        stats = config(["cur_amax"], ["weight", "wgrad"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with telens.watch(model, stats, tmp_path):
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.arange(5)).square().mean().backward()
                optimizer.step()
        values = recorded(tmp_path, "cur_amax")
        assert {("1", "wgrad", 0), ("1", "wgrad", 1), ("0", "weight", 1)} <= {*values}

    def test_fp64_models_are_recorded(self, tmp_path, model):
        model = model.double()
        with telens.watch(model, AMAX, tmp_path):
            model(X.double()).sum().backward()
        values = recorded(tmp_path, "cur_amax")
        assert values["0", "activation", 0] == X.abs().max().item()
        assert ("2", "gradient", 0) in values

    def test_complex_weights_do_not_end_the_watch(self, tmp_path):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.complex64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with warnings.catch_warnings(), telens.watch(model, AMAX, tmp_path):
            warnings.simplefilter("error", UserWarning)
            for _ in range(2):
                optimizer.zero_grad()
                model[1](model[0](X).to(torch.complex64)).abs().mean().backward()
                optimizer.step()
        assert ("0", "activation", 1) in recorded(tmp_path, "cur_amax")


class DropsCache(nn.Module):
    """A module whose pickled state lacks an attribute that its forward reads."""

    def __init__(self):
        super().__init__()
        self.factor = 2.0

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "factor"}

    def forward(self, x):
        return x * self.factor


def test_a_module_that_is_not_watched_is_scripted_unchanged(tmp_path):
    with telens.watch(nn.Linear(4, 4), AMAX, tmp_path):
        scripted = torch.jit.script(DropsCache())
    assert scripted(torch.ones(1)).item() == 2


def test_another_librarys_reduce_method_is_kept(tmp_path, monkeypatch):
    def reduce(module, protocol):
        return object.__reduce_ex__(module, protocol)

    monkeypatch.setattr(nn.Module, "__reduce_ex__", reduce, raising=False)
    telens.watch(nn.Linear(4, 4), AMAX, tmp_path).stop()
    assert nn.Module.__dict__["__reduce_ex__"] is reduce
