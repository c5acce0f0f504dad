"""The captures of ``make_graphed_callables`` on a CPU, with recorded operators instead of CUDA
graphs.

Order, buffers, FP8 states and errors; what a GPU does is test_cuda_graphed_callables.
"""

import graphed_cases as cases
import pytest
import torch
from recorded_graphs import RecordedGraphs

import telens
import telens.pytorch as te
from telens.pytorch import graph
from telens.pytorch.graphs.order import Pass, schedule_by_order


@pytest.fixture
def graphs(monkeypatch):
    recorded = RecordedGraphs()
    monkeypatch.setattr(graph, "_graphs_for", lambda runners: recorded)
    return recorded


@pytest.mark.parametrize("name", cases.RECIPES)
def test_layers_train_as_without_graphs(graphs, name):
    recipe = cases.RECIPES[name]
    expected = cases.train(cases.make_layers("cpu"), recipe, "cpu", microbatches=2)
    layers = cases.make_layers("cpu")
    assert cases.graphed(layers, recipe, "cpu") == tuple(layers)
    assert len(graphs.captures) == 6
    assert len({id(pool) for pool, _ in graphs.captures}) == 1
    cases.assert_same(cases.train(layers, recipe, "cpu", microbatches=2), expected)


@pytest.mark.parametrize("name", ["delayed", "current"])
def test_an_order_shares_memory_in_the_order_of_its_passes(graphs, name):
    recipe = cases.RECIPES[name]
    layers = [cases.make_layers("cpu")[0] for _ in range(2)]
    expected = cases.run_pipeline(None, cases.copies(layers), recipe, "cpu", torch.float32)
    calls = cases.graphed_pipeline(layers, recipe, "cpu", torch.float32)
    assert len(calls) == 4
    found = cases.run_pipeline(calls, layers, recipe, "cpu", torch.float32)
    cases.assert_same(found, expected)


@pytest.mark.parametrize("name", ["delayed", "current"])
def test_cached_weights_have_separate_graphs(graphs, name):
    recipe = cases.RECIPES[name]
    kwargs = {"microbatches": 2, "flagged": True}
    expected = cases.train(cases.make_layers("cpu"), recipe, "cpu", **kwargs)
    layers = cases.make_layers("cpu")
    cases.graphed(layers, recipe, "cpu", cache_quantized_params=True)
    assert len({id(pool) for pool, _ in graphs.captures}) == 2
    sizes = [size for _, size in graphs.captures]
    assert sum(sizes[6:]) < sum(sizes[:6])  # no cast of a weight
    cases.assert_same(cases.train(layers, recipe, "cpu", **kwargs), expected)
    graphs.captures.clear()
    layers = [cases.make_layers("cpu")[0] for _ in range(2)]
    expected = cases.run_pipeline(None, cases.copies(layers), recipe, "cpu", torch.float32, 3, True)
    calls = cases.graphed_pipeline(
        layers, recipe, "cpu", torch.float32, cache_quantized_params=True
    )
    assert len({id(pool) for pool, _ in graphs.captures}) == 3  # a first one's for each micro-batch
    found = cases.run_pipeline(calls, layers, recipe, "cpu", torch.float32, 3, True)
    cases.assert_same(found, expected)


def test_histories_continue_and_evaluation_keeps_them(graphs):
    recipe = cases.RECIPES["delayed"]
    layers, plain = cases.make_layers("cpu"), cases.make_layers("cpu")
    for each in (layers, plain):
        cases.train(each, recipe, "cpu", steps=1)
    cases.graphed(layers, recipe, "cpu")
    for one, two in zip(layers, plain, strict=True):
        assert torch.equal(one.get_extra_state(), two.get_extra_state())
    for each in (*layers, *plain):
        each.eval()
    x = cases.inputs_of(9, "cpu", torch.float32)
    with torch.no_grad(), te.autocast(recipe=recipe):
        cases.assert_same([layers[0](x)], [plain[0](x)])  # without a graph
    for each in (*layers, *plain):
        each.train()
    expected = cases.train(plain, recipe, "cpu", steps=2)
    cases.assert_same(cases.train(layers, recipe, "cpu", steps=2), expected)


def test_modules_in_evaluation_mode_capture_only_the_forward(graphs):
    recipe = cases.RECIPES["delayed"]
    layer, plain = (cases.make_layers("cpu")[1].eval() for _ in range(2))
    te.make_graphed_callables(layer, cases.sample("cpu"), enabled=True, recipe=recipe)
    assert len(graphs.captures) == 1
    x = cases.inputs_of(1, "cpu", torch.float32)
    with torch.no_grad(), te.autocast(recipe=recipe):
        cases.assert_same([layer(x)], [plain(x)])


def test_nested_keywords_and_results_are_supported(graphs):
    class Split(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, x, *, scale, shift=None, sign=1):
            y = x * self.weight * scale
            return {"y": y, "rest": (sign * y.sum(), None, (y > 0))}

    module = Split()
    x, scale = torch.zeros(3, 4, requires_grad=True), torch.ones(4)
    te.make_graphed_callables(module, (x,), sample_kwargs={"scale": scale, "sign": -1})
    x = torch.randn(3, 4, requires_grad=True)
    found = module(x, scale=2 * scale, sign=-1)
    assert found["rest"][1] is None
    assert torch.equal(found["y"], 2 * x)
    assert torch.equal(found["rest"][2], x > 0)
    found["y"].sum().backward()
    assert torch.equal(x.grad, torch.full((3, 4), 2.0))
    assert torch.equal(module.weight.grad, 2 * x.sum(0).detach())
    with pytest.raises(telens.UsageError, match="an argument is 1; expected -1"):
        module(x, scale=scale, sign=1)
    with pytest.raises(telens.UsageError, match=r"an input is torch\.float64 on cpu; expected"):
        module(x.double(), scale=scale, sign=-1)


def test_a_schedule_goes_backward_through_a_chunk():
    found = schedule_by_order(3, [1, 2, 1, 2, -2, -1, -2, -1], [2, 1])
    # Chunk 1 has the callables 0 and 1, then 2 and 3; chunk 2 has 4, then 5.
    forwards, backwards = [0, 1, 4, 2, 3, 5], [4, 1, 0, 5, 3, 2]
    assert found.events == tuple((i, Pass.forward) for i in forwards) + tuple(
        (i, Pass.backward) for i in backwards
    )
    assert found.by_microbatch() == [[0, 1, 4], [2, 3, 5]]


class Draws(torch.nn.Module):
    def forward(self, x):
        return x + torch.randn(2)


def test_uncapturable_arguments_are_rejected(graphs):
    x = (torch.zeros(2, requires_grad=True),)
    for module, args, options, message in (
        (cases.Reads(), x, {}, "a graphed Reads: its forward cannot be captured: .*reads a value"),
        (Draws(), x, {}, "a graphed Draws: its forward draws random numbers on the host"),
        (cases.Reads(), x, {"num_warmup_iters": 0}, "num_warmup_iters is 0; expected at least 1"),
    ):
        with pytest.raises(telens.UsageError, match=message):
            te.make_graphed_callables(module, args, **options)
    with te.autocast(), pytest.raises(telens.UsageError, match="an autocast is open"):
        te.make_graphed_callables(cases.Reads(), x)


def test_memory_moved_after_the_capture_is_an_error(graphs):
    recipe = cases.RECIPES["delayed"]
    layer = cases.make_layers("cpu")[2]
    te.make_graphed_callables(layer, cases.sample("cpu"), enabled=True, recipe=recipe)
    x = cases.inputs_of(1, "cpu", torch.float32)
    layer(x)
    other = cases.DelayedScaling(amax_history_len=7)
    with torch.no_grad(), te.autocast(recipe=other):
        layer.eval()(x)
    with pytest.raises(telens.UsageError, match="a history that its layer no longer has"):
        layer.train()(x)
    layer.weight.data = layer.weight.data.clone()
    with pytest.raises(telens.UsageError, match="its parameters have moved since the capture"):
        layer(x)


def test_a_frozen_weight_that_moves_after_the_capture_is_an_error_too(graphs):
    layer = cases.make_layers("cpu")[2]
    layer.weight.requires_grad_(False)
    te.make_graphed_callables(layer, cases.sample("cpu"))
    x = cases.inputs_of(1, "cpu", torch.float32)
    layer(x)
    layer.weight.data = layer.weight.data.clone()
    with pytest.raises(telens.UsageError, match="its parameters have moved since the capture"):
        layer(x)


@pytest.mark.parametrize("move", ["codes", "values", "dtype"])
@pytest.mark.parametrize("name", ["delayed", "current"])
def test_stored_weights_that_move_after_the_capture_are_an_error(graphs, name, move):
    recipe = cases.RECIPES[name]
    moves = cases.moves_of(recipe, "cpu", torch.float32)
    cases.check_stored_weights_that_move(recipe, "cpu", torch.float32, moves[move])
