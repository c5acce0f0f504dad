"""Graphed callables: ``reset``, hooks around captures, streams and buffers of gradients."""

import contextlib

import graphed_cases as cases
import pytest
import torch
from recorded_graphs import RecordedGraphs

import telens
import telens.pytorch as te
from telens.pytorch import graph


def make_linear() -> torch.nn.Linear:
    torch.manual_seed(1)
    return torch.nn.Linear(8, 8)


def sample() -> tuple[torch.Tensor]:
    return (torch.zeros(4, 8, requires_grad=True),)


def test_a_module_runs_as_before_after_its_reset(graphs):
    layer, plain = make_linear(), make_linear()
    attributes = set(vars(layer))
    te.make_graphed_callables(layer, sample())
    waiting = layer(torch.ones(4, 8))
    layer.reset()
    assert set(vars(layer)) == attributes
    with pytest.raises(telens.UsageError, match="a graphed Linear: backward after its reset"):
        waiting.sum().backward()
    x = torch.randn(3, 8)  # another shape than the sample's
    assert torch.equal(layer(x), plain(x))
    te.make_graphed_callables(layer, sample())  # and again
    x = torch.randn(4, 8)
    assert torch.equal(layer(x), plain(x))


def test_function_of_an_order_cannot_be_called_after_reset(graphs):
    calls = te.make_graphed_callables((make_linear(),), (sample(),) * 2, _order=[1, 1, -1, -1])
    calls[0].reset()
    calls[0].reset()
    with pytest.raises(telens.UsageError, match=r"a graphed Linear: called after its reset\(\)"):
        calls[0](torch.ones(4, 8))
    calls[1](torch.ones(4, 8)).sum().backward()
    calls[1].backward_dw()  # nothing waits without delay_wgrad_compute


def test_hooks_run_around_warm_ups_and_captures(graphs):
    layer, seen = make_linear(), []

    def hook(name):
        def call(module):
            assert module is layer
            seen.append((name, torch.ones(()).item()))  # no capture would hold this

        return call

    names = ["forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks"]
    hooks = {name: {7: hook(name)} for name in names}
    te.make_graphed_callables(layer, sample(), num_warmup_iters=2, capture_time_hooks=[hooks])
    runs = 2 if graphs is None else 3
    assert [name for name, _ in seen] == names * runs
    seen.clear()
    layer(torch.ones(4, 8)).sum().backward()
    assert seen == []


def test_wrong_hooks_and_reuse_are_errors_by_name():
    layer = make_linear()
    for options, message in (
        ({"capture_time_hooks": [None, None]}, "capture_time_hooks has 2 entries for 1 modules"),
        ({"capture_time_hooks": [{"hooks": {}}]}, "capture_time_hooks has 'hooks'; expected"),
        (
            {"capture_time_hooks": [{"forward_hooks": {0: lambda module: 1}}]},
            "one of forward_hooks in capture_time_hooks returned a value",
        ),
        ({"_reuse_graph_input_output_buffers": True}, "needs an _order"),
    ):
        with pytest.raises(telens.UsageError, match=message):
            te.make_graphed_callables(layer, sample(), **options)
    with pytest.raises(telens.UsageError, match="is for modules in training mode"):
        te.make_graphed_callables(
            (layer.eval(),), (sample(),), _order=[1, -1], _reuse_graph_input_output_buffers=True
        )


@pytest.mark.parametrize("clones", [True, False])
def test_parameter_gradients_are_copies_unless_allowed_buffers(monkeypatch, clones):
    recorded = RecordedGraphs()
    monkeypatch.setattr(graph, "_graphs_for", lambda runners: recorded)
    layer, seen = make_linear(), []
    te.make_graphed_callables(layer, sample(), clone_param_grads_on_return=clones)
    layer.weight.register_hook(seen.append)
    x = torch.randn(4, 8)
    for factor in (1, 2):
        layer(x * factor).sum().backward()
    first, second = seen
    assert torch.equal(second, 2 * x.sum(0).expand(8, 8))
    assert torch.equal(second, first) is not clones
    assert (first.data_ptr() == second.data_ptr()) is not clones
    assert torch.equal(layer.bias.grad, torch.full((8,), 8.0))


@pytest.mark.parametrize("event", [None, "the event"])
def test_a_call_may_name_the_stream_of_its_replays(monkeypatch, event):
    """No GPU is waited for here, but in the order of calls on a GPU."""
    log = []
    caller, side = cases.LoggedStream("caller", log), cases.LoggedStream("side", log)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: caller)

    @contextlib.contextmanager
    def entered(stream):
        log.append(f"{stream.name} begins")
        yield
        log.append(f"{stream.name} ends")

    monkeypatch.setattr(torch.cuda, "stream", entered)
    recorded = RecordedGraphs()
    monkeypatch.setattr(graph, "_graphs_for", lambda runners: recorded)
    layer, plain = make_linear(), make_linear()
    te.make_graphed_callables(layer, sample())
    x = torch.randn(4, 8)
    one = ["side waits for caller", "side begins", "side ends",
           "caller waits for the event" if event else "caller waits for side"]  # fmt: skip
    out = layer(x, cuda_graph_stream=side, cuda_graph_event=event)
    assert log == one
    out.sum().backward()
    assert log == one * 2
    assert torch.equal(out, plain(x))
    layer(x, cuda_graph_stream=caller).sum().backward()
    layer(x).sum().backward()
    assert log == one * 2
    layer.eval()(x, cuda_graph_stream=side)  # without a graph


def test_on_a_cpu_the_stream_is_without_effect():
    layer, plain = make_linear(), make_linear()
    te.make_graphed_callables(layer, sample())
    x = torch.randn(4, 8)
    assert torch.equal(layer(x, cuda_graph_stream=object(), cuda_graph_event=object()), plain(x))


def test_keywords_at_their_defaults_may_differ_from_the_sample():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = te.Linear(16, 16, device="cpu")

        def forward(self, x, mask=None, factor=1.0, *, kept=None):
            y = self.linear(x) * factor
            return y if mask is None else y * mask

    layer, x = Layer(), torch.randn(8, 16)
    expected = layer(x)
    graphed = te.make_graphed_callables(
        layer, (torch.randn(8, 16),), sample_kwargs={"factor": 1.0, "kept": None}
    )
    for keywords in ({}, {"mask": None}, {"factor": 1.0}, {"kept": None, "factor": 1.0}):
        assert torch.equal(graphed(x, **keywords), expected)
    with pytest.raises(telens.UsageError, match="called with mask, which its sample does not have"):
        graphed(x, mask=torch.ones(16))
    with pytest.raises(telens.UsageError, match=r"an argument is 2.0; expected 1.0"):
        graphed(x, factor=2.0)
    with pytest.raises(telens.UsageError, match=r"an argument is None; expected 1.0"):
        graphed(x, factor=None)
    graphed = te.make_graphed_callables(Layer(), (torch.randn(8, 16),))
    with pytest.raises(telens.UsageError, match="called with factor, which its sample does not"):
        graphed(x, factor=None)


def test_a_single_module_with_an_order_is_as_a_tuple_of_it():
    layer, x = te.Linear(16, 16, device="cpu"), torch.randn(8, 16)
    sample = (torch.randn(8, 16),)
    (of_tuple,) = te.make_graphed_callables((layer,), (sample,), _order=[1, -1])
    alone = te.make_graphed_callables(layer, sample, _order=[1, -1])
    assert torch.equal(alone(x), of_tuple(x))
    both = te.make_graphed_callables(layer, (sample, sample), _order=[1, 1, -1, -1])
    assert torch.equal(both[1](x), layer(x))


def test_an_input_changed_in_place_is_changed_for_the_caller():
    class Counter(torch.nn.Module):
        def forward(self, x):
            x.copy_(x + 1)
            return x * 2

    counter = Counter().eval()
    first, sample_input = torch.zeros(4), torch.zeros(4)
    with torch.no_grad():
        te.make_graphed_callables(counter, (sample_input,), allow_unused_input=True)
        assert sample_input.eq(0).all()
        for step in range(1, 4):
            assert counter(first).eq(2 * step).all()
            assert first.eq(step).all()
