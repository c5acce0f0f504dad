"""``make_graphed_callables`` on a CPU: buffers, order, and the same results as without it."""

import contextlib
import copy

import graphed_cases as cases
import numpy as np
import pytest
import torch

import telens
import telens.pytorch as te
from telens.common.recipe import DelayedScaling
from telens.pytorch import graph_warm_up


def make_layers(count: int = 2) -> list[torch.nn.Module]:
    torch.manual_seed(1)
    return [te.LayerNormMLP(32, 64, device="cpu") for _ in range(count)]


def sample() -> tuple[torch.Tensor]:
    return (torch.zeros(16, 32, requires_grad=True),)


RECIPE = DelayedScaling(amax_history_len=4)


def train(layers, optimizer_steps: int = 3, **kwargs) -> list[torch.Tensor]:
    """Returns outputs and gradients of some steps, and the final state of the layers."""
    torch.manual_seed(2)
    optimizer = torch.optim.SGD([p for each in layers for p in each.parameters()], lr=0.1)
    results = []
    for _ in range(optimizer_steps):
        x = torch.randn(16, 32, requires_grad=True)
        out = x
        with te.autocast(recipe=RECIPE):
            for layer in layers:
                out = layer(out, **kwargs)
        out.square().mean().backward()
        results += [out.detach().clone(), x.grad, *(p.grad for p in layers[0].parameters())]
        results = [each.clone() for each in results]
        optimizer.step()
        optimizer.zero_grad()
    return results + [each.get_extra_state() for each in layers]


def test_layers_train_as_without_it():
    expected = train(make_layers())
    layers = make_layers()
    made = te.make_graphed_callables(
        tuple(layers), (sample(), sample()), enabled=True, recipe=RECIPE
    )
    assert made == tuple(layers)
    for one, two in zip(train(layers), expected, strict=True):
        assert torch.equal(one, two)


def test_warm_up_restores_random_states_histories_and_gradients():
    (layer,) = make_layers(1)
    with te.autocast(recipe=RECIPE):
        layer(torch.ones(16, 32)).sum().backward()
    gradients = [p.grad.clone() for p in layer.parameters()]
    state, random = layer.get_extra_state(), torch.get_rng_state()
    called = []
    te.make_graphed_callables(
        layer,
        sample(),
        enabled=True,
        recipe=RECIPE,
        pre_warmup_hook=lambda: called.append("before"),
        post_warmup_hook=lambda: called.append("after"),
    )
    assert called == ["before", "after"]
    assert torch.equal(layer.get_extra_state(), state)
    assert torch.equal(torch.get_rng_state(), random)
    for one, two in zip((p.grad for p in layer.parameters()), gradients, strict=True):
        assert torch.equal(one, two)


def test_outputs_are_buffers_that_the_next_call_overwrites():
    layer = te.make_graphed_callables(torch.nn.Linear(8, 8), (torch.zeros(4, 8),))
    first = layer(torch.ones(4, 8))
    second = layer(torch.zeros(4, 8))
    assert first.data_ptr() == second.data_ptr()
    assert torch.equal(first, second)
    with pytest.raises(telens.UsageError, match="one callable for each micro-batch"):
        first.sum().backward()


def test_in_the_other_mode_a_module_runs_as_before():
    layer = te.make_graphed_callables(torch.nn.Linear(8, 8), (torch.zeros(4, 8),)).eval()
    first, second = layer(torch.ones(4, 8)), layer(torch.zeros(4, 8))
    assert first.data_ptr() != second.data_ptr()
    assert layer(torch.ones(3, 8)).shape == (3, 8)


def test_order_gives_a_callable_per_forward_and_layer():
    layers = [torch.nn.Linear(8, 8) for _ in range(2)]
    plain = copy.deepcopy(layers)
    # Two chunks of one layer each, two micro-batches.
    order = [1, 2, 1, 2, -2, -1, -2, -1]
    samples = tuple((torch.zeros(4, 8, requires_grad=True),) for _ in range(4))
    calls = te.make_graphed_callables(tuple(layers), samples, _order=order)
    assert len(calls) == 4
    x = [torch.randn(4, 8, requires_grad=True) for _ in range(2)]
    # Chunk 1 has the callables 0 and 1, chunk 2 has 2 and 3, one for each micro-batch.
    outs = [calls[2](calls[0](x[0])), calls[3](calls[1](x[1]))]
    expected = [plain[1](plain[0](each)) for each in x]
    for one, two in zip(outs, expected, strict=True):
        assert torch.equal(one, two)
        one.square().sum().backward()
        two.square().sum().backward()
    for one, two in zip(layers, plain, strict=True):
        assert torch.equal(one.weight.grad, two.weight.grad)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([1, -1, -1, 1], r"_order\[2\] is a backward of chunk 1 before its forward"),
        ([1, 2, -2], "_order has 1 forwards and 0 backwards of chunk 1"),
        ([1, -1, -2], "_order has a backward of chunk 2, which does not have a forward"),
        ([1, 2, 0, -1], "must be a list of chunks"),
        ([1, 2, -2, -1], "there are 3 sample_args; expected 2"),
        ([1, 2, 3, -3, -2, -1], "2 modules are not a multiple of 3 chunks"),
    ],
)
def test_an_order_that_no_pipeline_has_is_an_error(order, message):
    layers = tuple(torch.nn.Linear(8, 8) for _ in range(2))
    samples = tuple((torch.zeros(4, 8),) for _ in range(3))
    with pytest.raises(telens.UsageError, match=message):
        te.make_graphed_callables(layers, samples, _order=order)


@pytest.mark.parametrize("sizes", [1, [1.0, 1.0], [True, 1], ["a", 1]])
def test_layers_of_chunks_are_whole_numbers(sizes):
    layers = tuple(torch.nn.Linear(8, 8) for _ in range(2))
    samples = tuple((torch.zeros(4, 8),) for _ in range(2))
    message = "_num_layers_per_chunk must be a list of whole numbers, one a chunk, not"
    with pytest.raises(telens.UsageError, match=message):
        te.make_graphed_callables(
            layers, samples, _order=[1, 2, -2, -1], _num_layers_per_chunk=sizes
        )


def test_weight_caching_asks_each_call_which_microbatch_it_is():
    layers = make_layers()
    te.make_graphed_callables(
        tuple(layers),
        (sample(), sample()),
        enabled=True,
        recipe=RECIPE,
        cache_quantized_params=True,
    )
    with pytest.raises(telens.UsageError, match="is_first_microbatch must be True or False"):
        train(layers)
    found = train(layers, is_first_microbatch=True)
    expected = train(make_layers(), is_first_microbatch=True)
    assert torch.equal(found[0], expected[0])


def test_former_names_are_taken_and_both_are_an_error():
    (layer,) = make_layers(1)
    with pytest.warns(DeprecationWarning, match="fp8_enabled is now enabled"):
        te.make_graphed_callables(layer, sample(), fp8_enabled=True)
    with pytest.raises(
        telens.UsageError, match="fp8_recipe is the former name of recipe, and both"
    ):
        te.make_graphed_callables(layer, sample(), fp8_recipe=RECIPE, recipe=RECIPE)


def test_wrong_modules_and_inputs_are_errors_by_name():
    linear = torch.nn.Linear(8, 8)
    x = (torch.zeros(4, 8),)
    hooked = torch.nn.Linear(8, 8)
    hooked.register_forward_hook(lambda *arguments: None)
    hooked_behind, buffered = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    hooked_behind.register_full_backward_pre_hook(lambda *arguments: None)
    buffered.register_buffer("scale", torch.ones(8, requires_grad=True))
    for modules, args, message in (
        (torch.relu, x, "modules must be torch.nn.Modules"),
        ((linear, torch.nn.Linear(8, 8).eval()), (x, x), "all in training or all in evaluation"),
        ((linear, linear), (x,), "there are 1 sample_args for 2 modules"),
        (hooked, x, "has hooks, which a graph would not call"),
        (hooked_behind, x, "has hooks, which a graph would not call"),
        (buffered, x, "the buffer scale of Linear has requires_grad=True"),
        (linear, (torch.zeros(4, 8, device="meta"),), "is on meta; expected the CPU or a GPU"),
        (linear, ([1],), None),
    ):
        with pytest.raises((telens.UsageError, TypeError), match=message):
            te.make_graphed_callables(modules, args)
    layer = te.make_graphed_callables(linear, x)
    with pytest.raises(telens.UsageError, match=r"an input is .*expected \(4, 8\), as its sample"):
        layer(torch.zeros(5, 8))
    with pytest.raises(
        telens.UsageError, match="called with arguments that differ from its sample"
    ):
        layer(torch.zeros(4, 8), 3)


@pytest.mark.parametrize("iterations", [-1, 1.5, True, None])
def test_a_number_of_warm_ups_below_0_is_refused_on_every_device(iterations):
    sample = (torch.zeros(4, 8),)
    with pytest.raises(telens.UsageError, match=r"num_warmup_iters must be (a number|an int)"):
        te.make_graphed_callables(torch.nn.Linear(8, 8), sample, num_warmup_iters=iterations)


def test_names_and_defaults_match_the_documentation():
    import inspect

    found = {
        n: p.default for n, p in inspect.signature(te.make_graphed_callables).parameters.items()
    }
    assert list(found)[:10] == [
        "modules",
        "sample_args",
        "num_warmup_iters",
        "allow_unused_input",
        "sample_kwargs",
        "fp8_enabled",
        "fp8_calibrating",
        "fp8_recipe",
        "fp8_group",
        "fp8_weight_caching",
    ]
    assert found["num_warmup_iters"] == 3
    assert found["allow_unused_input"] is False


def test_warming_up_leaves_a_tracker_as_it_was():
    x, seen = torch.ones(8), []
    for graphed in (False, True):
        tracker = te.CudaRNGStatesTracker("cpu")
        tracker.add("model-parallel-rng", 11)
        torch.manual_seed(12)
        module = cases.Forked(tracker)
        if graphed:
            te.make_graphed_callables(module, (x,))
        seen.append([module(x).clone() for _ in range(2)])
    assert all(torch.equal(one, two) for one, two in zip(*seen, strict=True))
    assert not torch.equal(*seen[0])


@pytest.mark.parametrize("fails_after", [False, True])
def test_failed_warm_up_synchronizes_and_keeps_its_error(monkeypatch, fails_after):
    """No GPU is waited for here, but in the order of calls on a GPU."""
    seen = []

    def synchronize(device):
        seen.append("wait")
        if fails_after and "run" in seen:
            raise RuntimeError("an error of the device")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)

    def run_and_fail():
        with graph_warm_up._side_stream({torch.device("cuda", 0)}):
            seen.append("run")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_and_fail()
    assert seen == ["wait", "run", "wait"]


class Constant(torch.nn.Module):
    def forward(self, x, constant):
        return x + 1


def test_constants_that_cannot_be_compared_are_refused_by_name():
    x, array = torch.zeros(4, 8), np.zeros(3)
    with pytest.raises(telens.UsageError, match="a sample is a ndarray, whose == does not return"):
        te.make_graphed_callables(Constant(), (x, array))
    nan = float("nan")
    made = te.make_graphed_callables(Constant(), (x, nan))
    assert torch.equal(made(x, nan), x + 1)
    layer = te.make_graphed_callables(Constant(), (x, 3))
    assert torch.equal(layer(x, 3), x + 1)
    for given in (array, 4, torch.tensor(3), None):
        with pytest.raises(
            telens.UsageError, match=r"an argument is .*; expected 3, as its sample"
        ):
            layer(x, given)


class Partly(torch.nn.Module):
    """Uses one of its parameters and its first input."""

    def __init__(self):
        super().__init__()
        self.used, self.spare = (torch.nn.Parameter(torch.ones(8)) for _ in range(2))

    def forward(self, x, y):
        return x * self.used


def test_tensor_without_gradient_is_named_unless_allowed():
    x, y = (torch.zeros(4, 8, requires_grad=True) for _ in range(2))
    for args, named in (((x, y.detach()), "the parameter spare"), ((x, y), "input 1")):
        with pytest.raises(
            telens.UsageError,
            match=f"a graphed Partly: {named} has no gradient: .*allow_unused_input=True",
        ):
            te.make_graphed_callables(Partly(), args)
    module = te.make_graphed_callables(Partly(), (x, y), allow_unused_input=True)
    module(x, y).sum().backward()
    assert module.spare.grad is None
    assert torch.equal(x.grad, torch.ones(4, 8))
