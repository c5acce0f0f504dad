"""``backward_dw`` of graphed callables: eager on a CPU, and with recorded operators for graphs."""

import graphed_cases as cases
import pytest
import torch

import telens
import telens.pytorch as te

# The backward of both chunks; the weight gradients of each are computed where the pipeline has
# time.
ORDER = [1, 2, 1, 2, -2, -1, -1.5, -2, -2.5, -1, -2.5, -1.5]


@pytest.mark.parametrize("main_grad", [False, True])
@pytest.mark.parametrize("flagged", [False, True])
def test_layers_train_as_without_graphs(graphs, flagged, main_grad):
    recipe = cases.RECIPES["delayed"]

    def made():
        return cases.make_delayed("cpu", fuse_wgrad_accumulation=main_grad)

    expected = cases.train_delayed(made(), recipe, "cpu", flagged=flagged)
    layers = made()
    before = [p.grad for each in layers for p in each.parameters()]
    cases.graphed(layers, recipe, "cpu", cache_quantized_params=flagged)
    assert [p.grad for each in layers for p in each.parameters()] == before
    if graphs is not None:
        assert len(graphs.captures) == 6 * (2 if flagged else 1)
    cases.assert_same(cases.train_delayed(layers, recipe, "cpu", flagged=flagged), expected)


def run_pipeline(calls, layers, recipe):
    """Runs ORDER; without calls, calls the layers themselves."""
    seen = []
    for step in range(2):
        outs = []
        for microbatch in range(2):
            x = cases.inputs_of(2 * step + microbatch, "cpu", torch.float32)
            first, second = layers if calls is None else (calls[microbatch], calls[2 + microbatch])
            with te.autocast(recipe=recipe):
                middle = first(x)
                given = middle.detach().requires_grad_()
                outs.append((x, middle, given, second(given), first, second))

        def backward(microbatch, chunk, outs=outs):
            _, middle, given, out, _, _ = outs[microbatch]
            if chunk == 2:
                out.square().mean().backward()
            else:
                middle.backward(given.grad)

        place = {2: iter((0, 1)), 1: iter((0, 1)), 2.5: iter((0, 1)), 1.5: iter((0, 1))}
        for entry in ORDER[4:]:
            microbatch = next(place[-entry])
            if -entry in (1, 2):
                backward(microbatch, -entry)
            else:
                outs[microbatch][4 if entry == -1.5 else 5].backward_dw()
        seen += [each for x, *_ in outs for each in (x.grad.clone(),)]
        seen += [p.grad.clone() for each in layers for p in each.parameters()]
        with torch.no_grad():
            for p in (p for each in layers for p in each.parameters()):
                p.sub_(0.1 * p.grad)
                p.grad = None
    return seen


def test_order_schedules_weight_gradients(graphs):
    recipe = cases.RECIPES["delayed"]
    expected = run_pipeline(None, cases.make_delayed("cpu"), recipe)
    layers = cases.make_delayed("cpu")
    calls = te.make_graphed_callables(
        tuple(layers),
        tuple(cases.sample("cpu") for _ in range(4)),
        enabled=True,
        recipe=recipe,
        _order=ORDER,
    )
    if graphs is not None:
        assert len({id(pool) for pool, _ in graphs.captures}) == 1
    cases.assert_same(run_pipeline(calls, layers, recipe), expected)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([1, -1.5, -1], r"_order\[1\] is a backward_dw of chunk 1 before its backward"),
        ([1, 1, -1, -1.5, -1], r"_order has 1 backward_dw \(-1\.5\) of chunk 1; expected 2"),
        ([1, -1, -2.5], "_order has a backward of chunk 2, which does not have a forward"),
        ([1, -1, 1.5], "must be a list of chunks, k for a forward"),
        ([1, -1, -1.25], "must be a list of chunks, k for a forward"),
    ],
)
def test_an_order_that_no_pipeline_has_is_an_error(order, message):
    (_, layer), samples = cases.make_delayed("cpu"), tuple(cases.sample("cpu") for _ in range(2))
    with pytest.raises(telens.UsageError, match=message):
        te.make_graphed_callables((layer,), samples, _order=order)


def test_one_that_is_missing_or_comes_in_another_order_is_an_error(graphs):
    _, layer = cases.make_delayed("cpu")
    calls = te.make_graphed_callables(
        (layer,), tuple(cases.sample("cpu") for _ in range(2)), _order=[1, 1, -1, -1]
    )
    x = torch.ones(cases.ROWS, cases.WIDTH, requires_grad=True)
    with pytest.raises(telens.UsageError, match="and none is left; call it once after each"):
        calls[0].backward_dw()
    for each in [call(x) for call in calls]:
        each.sum().backward()
    with pytest.raises(telens.UsageError, match="another callable of the module must come first"):
        calls[1].backward_dw()
    with pytest.raises(telens.UsageError, match="called before backward_dw of a graphed Linear"):
        calls[0](x)
    assert layer.weight.grad is None
    for call in calls:
        call.backward_dw()
    assert torch.equal(layer.weight.grad, torch.full_like(layer.weight, 2 * cases.ROWS))


def test_hooks_of_reductions_are_called_by_each_and_not_by_a_capture(graphs):
    class Block(torch.nn.Module):
        """A module that is not of this package, with such layers inside."""

        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(cases.make_delayed("cpu"))

        def forward(self, x):
            return self.layers[1](self.layers[0](x))

    block, called = Block(), []
    for number, each in enumerate(block.layers):
        each.register_wgrad_accumulation_and_reduce_hooks(lambda n=number: called.append(n))
    te.make_graphed_callables(block, cases.sample("cpu"))
    assert called == []
    for _ in range(2):
        block(cases.inputs_of(1, "cpu", torch.float32)).sum().backward()
        block.backward_dw()
    assert called == [1, 0, 1, 0]
    assert all(p.grad is not None for p in block.parameters())


def tripled(gradient):
    return None if gradient is None else gradient * 3  # None: that of the backward


@pytest.mark.parametrize("before", [True, False])
def test_parameter_hooks_run_per_gradient_but_not_in_warm_up(graphs, before):
    _, layer = cases.make_delayed("cpu")
    called, nodes = [], []

    def register():
        for name, parameter in layer.named_parameters():
            parameter.register_hook(tripled)
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: called.append(name))
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_, name=name: called.append(f"node of {name}"))
            nodes.append(node)

    if before:
        register()
    te.make_graphed_callables(layer, cases.sample("cpu"))
    if not before:
        register()
    assert called == []
    for calls in (1, 2):
        x = torch.ones(cases.ROWS, cases.WIDTH, requires_grad=True)
        layer(x).sum().backward()
        assert torch.equal(layer.bias.grad, torch.full_like(layer.bias, 3 * calls * cases.ROWS))
        layer.backward_dw()
        expected = torch.full_like(layer.weight, 3 * calls * cases.ROWS)
        assert torch.equal(layer.weight.grad, expected)
    for name in ("weight", "bias"):
        assert called.count(name) == called.count(f"node of {name}") >= 2


@pytest.mark.parametrize("frozen", [False, True])
def test_split_weight_gets_gradients_by_part(graphs, frozen):
    def made():
        torch.manual_seed(5)
        parts = {"q": cases.WIDTH, "k": cases.WIDTH}
        width = 2 * cases.WIDTH
        layer = te.Linear(
            cases.WIDTH, width, parameters_split=parts, delay_wgrad_compute=True, device="cpu"
        )
        layer.q_weight.requires_grad_(not frozen)
        return layer

    seen = []
    for graphed in (False, True):
        layer = made()
        if graphed:
            te.make_graphed_callables(layer, cases.sample("cpu"))
        layer(cases.inputs_of(1, "cpu", torch.float32)).square().sum().backward()
        layer.backward_dw()
        seen.append([p.grad for p in layer.parameters() if p.requires_grad])
    cases.assert_same(*seen)


def test_biases_and_norms_have_their_gradient_in_the_backward_or_none():
    """They do not wait for ``backward_dw``."""

    class Unbiased(torch.nn.Module):
        def __init__(self):
            super().__init__()
            _, self.layer = cases.make_delayed("cpu")

        def forward(self, x):
            return torch.nn.functional.linear(x, self.layer.weight)

    message = "the parameter layer.bias has no gradient"
    with pytest.raises(telens.UsageError, match=message):
        te.make_graphed_callables(Unbiased(), cases.sample("cpu"))
