"""Events that invalidate weight gradients that wait for ``backward_dw``: other passes, modes,
errors.
"""

import contextlib
import weakref

import graphed_cases as cases
import pytest
import torch

import telens
import telens.pytorch as te


def inputs():
    return torch.ones(cases.ROWS, cases.WIDTH, requires_grad=True)


def gradient_of(factor=1):
    """The weight gradient of a Linear whose outputs are summed."""
    return torch.full((cases.WIDTH, cases.WIDTH), float(factor * cases.ROWS))


def make_linears(count):
    return [
        te.Linear(cases.WIDTH, cases.WIDTH, delay_wgrad_compute=True, bias=False, device="cpu")
        for _ in range(count)
    ]


def test_a_forward_whose_memory_another_callable_needs_is_an_error(graphs):
    first, second = cases.graphed(make_linears(2), None, "cpu")
    x = inputs()
    second(first(x)).sum().backward()
    second.backward_dw()
    with pytest.raises(telens.UsageError, match="before backward_dw of a graphed Linear, whose"):
        second(x)
    first.backward_dw()
    second(first(x)).sum().backward()
    first.backward_dw()
    with pytest.raises(telens.UsageError, match="need memory that this forward overwrites"):
        first(x)


def test_forward_ordered_after_backward_may_precede_backward_dw(graphs):
    (layer,) = make_linears(1)
    calls = te.make_graphed_callables(
        (layer,), tuple(cases.sample("cpu") for _ in range(2)), _order=[1, -1, 1, -1.5, -1, -1.5]
    )
    for _ in range(2):
        layer.weight.grad = None
        calls[0](inputs()).sum().backward()
        out = calls[1](2 * inputs().detach())
        with pytest.raises(telens.UsageError, match="need memory that this forward overwrites"):
            calls[0](inputs())
        calls[0].backward_dw()
        assert torch.equal(layer.weight.grad, gradient_of(1))
        out.sum().backward()
        calls[1].backward_dw()
        assert torch.equal(layer.weight.grad, gradient_of(3))


def test_forward_captured_after_backward_dw_cannot_precede_it(graphs):
    (layer,) = make_linears(1)
    calls = te.make_graphed_callables(
        (layer,), tuple(cases.sample("cpu") for _ in range(2)), _order=[1, -1, -1.5, 1, -1, -1.5]
    )
    calls[0](inputs()).sum().backward()
    with pytest.raises(telens.UsageError, match="need memory that this forward overwrites"):
        calls[1](inputs())
    calls[0].backward_dw()
    assert torch.equal(layer.weight.grad, gradient_of(1))


@pytest.mark.parametrize("in_order", [True, False])
def test_backward_dws_that_share_memory_keep_their_order(graphs, in_order):
    """Without an order, each callable has its own memory."""
    layers = make_linears(2)
    first, second = te.make_graphed_callables(
        tuple(layers),
        tuple(cases.sample("cpu") for _ in range(2)),
        _order=[1, -1, -1.5] if in_order else [1, -1],
        _num_layers_per_chunk=[2],
    )
    second(first(inputs())).sum().backward()
    if in_order:
        with pytest.raises(telens.UsageError, match="need memory that this backward_dw overwrites"):
            first.backward_dw()
        second.backward_dw()
        first.backward_dw()
    else:
        first.backward_dw()
        second.backward_dw()
    expected = layers[1].weight.detach().sum(0)[:, None].expand(cases.WIDTH, cases.WIDTH)
    torch.testing.assert_close(layers[0].weight.grad, cases.ROWS * expected)
    hidden = layers[0].weight.detach().sum(1).expand(cases.WIDTH, cases.WIDTH)
    torch.testing.assert_close(layers[1].weight.grad, cases.ROWS * hidden)


def test_first_microbatches_have_separate_memory(graphs):
    layers = make_linears(2)
    calls = te.make_graphed_callables(
        tuple(layers),
        tuple(cases.sample("cpu") for _ in range(4)),
        _order=[1, 1, -1, -1],
        _num_layers_per_chunk=[2],
        cache_quantized_params=True,
    )
    calls[1](
        calls[0](inputs(), is_first_microbatch=True), is_first_microbatch=True
    ).sum().backward()
    calls[1].backward_dw()
    calls[2](inputs(), is_first_microbatch=False)
    calls[2](inputs(), is_first_microbatch=True)
    for first in (True, False):  # both take the callable's buffers of inputs
        with pytest.raises(telens.UsageError, match="called before backward_dw"):
            calls[0](inputs(), is_first_microbatch=first)
    with pytest.raises(telens.UsageError, match="called before backward_dw"):
        calls[1](inputs(), is_first_microbatch=True)
    calls[1](inputs(), is_first_microbatch=False)
    calls[0].backward_dw()
    assert torch.isfinite(layers[0].weight.grad).all()


def test_a_second_backward_before_backward_dw_is_an_error(graphs):
    (layer,) = make_linears(1)
    te.make_graphed_callables(layer, cases.sample("cpu"), retain_graph_in_backward=True)
    out = layer(inputs()).sum()
    out.backward(retain_graph=True)
    with pytest.raises(telens.UsageError, match="need memory that this backward overwrites"):
        out.backward(retain_graph=True)
    layer.backward_dw()
    assert torch.equal(layer.weight.grad, gradient_of(1))


@pytest.mark.parametrize("training", [True, False])
def test_backward_dw_in_the_other_mode_calls_the_module(graphs, training):
    """Also if a module has no ``backward_dw`` itself."""
    for wrap in (lambda layer: layer, torch.nn.Sequential):
        (layer,) = make_linears(1)
        called, module = [], wrap(layer.train(training))
        layer.register_wgrad_accumulation_and_reduce_hooks(lambda called=called: called.append(1))
        te.make_graphed_callables(module, cases.sample("cpu"))
        module.train(not training)
        module(inputs()).sum().backward()
        module.backward_dw()
        assert torch.equal(layer.weight.grad, gradient_of(1))
        module.train()
        module(inputs()).sum().backward()
        module.backward_dw()
        assert torch.equal(layer.weight.grad, gradient_of(2))
        assert called == [1, 1]
        with pytest.raises(telens.UsageError, match="none is left"):
            module.backward_dw()


def test_the_modes_of_a_module_take_turns(graphs):
    """The gradients that wait in its layers then belong to one mode."""
    (layer,) = make_linears(1)
    te.make_graphed_callables(layer, cases.sample("cpu"))
    out = layer(inputs()).sum()
    layer.eval()
    layer(inputs()).sum().backward()
    layer.train()
    with pytest.raises(telens.UsageError, match="a backward outside of the callable has left"):
        out.backward()
    layer.backward_dw()
    layer(inputs()).sum().backward()
    layer.eval()
    with pytest.raises(telens.UsageError, match=r"called in another mode .* before backward_dw"):
        layer(inputs())
    with torch.no_grad():
        layer(inputs())
    layer.reset()
    layer(inputs()).sum().backward()
    layer.backward_dw()
    assert torch.equal(layer.weight.grad, gradient_of(2)), "of both modes, not of the one dropped"


def fails(module):
    raise ZeroDivisionError


@pytest.mark.parametrize("hook", ["forward_hooks", "backward_hooks"])
def test_failed_call_leaves_no_gradient(graphs, hook):
    (layer,) = make_linears(1)
    with pytest.raises(ZeroDivisionError):
        te.make_graphed_callables(
            layer, cases.sample("cpu"), capture_time_hooks=[{hook: {0: fails}}]
        )
    layer(inputs()).sum().backward()
    layer.backward_dw()
    assert torch.equal(layer.weight.grad, gradient_of(1))


def test_a_gradient_that_waits_is_an_error_by_name(graphs):
    (layer,) = make_linears(1)
    layer(inputs()).sum().backward()
    with pytest.raises(telens.UsageError, match="a backward of Linear has left weights' gradients"):
        te.make_graphed_callables(layer, cases.sample("cpu"))
    layer.backward_dw()
    assert torch.equal(layer.weight.grad, gradient_of(1))
    te.make_graphed_callables(layer, cases.sample("cpu"))


@pytest.mark.parametrize("gone", [0, 1])
def test_reset_drops_its_pending_gradients(graphs, gone):
    (layer,) = make_linears(1)
    calls = te.make_graphed_callables(
        (layer,), tuple(cases.sample("cpu") for _ in range(2)), _order=[1, 1, -1, -1]
    )
    outs = [call((factor * inputs()).detach()) for call, factor in zip(calls, (1, 2), strict=True)]
    for out in outs:
        out.sum().backward()
    runner = calls[gone].reset.__self__
    held = [*runner.passes.values(), *(runner.inputs if graphs is None else ())]
    freed = [weakref.ref(each) for each in held]
    del outs, out, held
    calls[gone].reset()
    assert [each() for each in freed] == [None] * len(freed)
    calls[1 - gone].backward_dw()
    assert torch.equal(layer.weight.grad, gradient_of(2 - gone))
    with pytest.raises(telens.UsageError, match="none is left"):
        calls[gone].backward_dw()


def test_a_backward_dw_runs_on_the_stream_of_its_call(graphs, monkeypatch):
    """No GPU is waited for here, but in the order of calls on a GPU."""
    log = []
    stream = cases.LoggedStream("side", log)
    caller = cases.LoggedStream("caller", log)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: caller)
    monkeypatch.setattr(torch.cuda, "stream", lambda s: contextlib.nullcontext())
    (layer,) = make_linears(1)
    te.make_graphed_callables(layer, cases.sample("cpu"))
    layer(inputs(), cuda_graph_stream=stream, cuda_graph_event="the event").sum().backward()
    log.clear()
    layer.backward_dw()
    ends = ["side waits for caller", "caller waits for side"]  # no event is recorded there
    assert log == ([] if graphs is None else ends)


@pytest.mark.parametrize("training", [True, False])
def test_a_place_in_an_order_without_weights_gradients_is_an_error(training):
    layer = te.Linear(cases.WIDTH, cases.WIDTH, device="cpu", delay_wgrad_compute=not training)
    message = "lacks delay_wgrad_compute=True" if training else "is in evaluation mode"
    with pytest.raises(telens.UsageError, match=f"has a backward_dw .* of Linear, which {message}"):
        te.make_graphed_callables(
            (layer.train(training),), (cases.sample("cpu"),), _order=[1, -1, -1.5]
        )
