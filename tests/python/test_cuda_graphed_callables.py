"""``make_graphed_callables`` on a GPU: layers train as without graphs, bit for bit. Skipped where
there is no GPU or the library was built without CUDA; `make gpu-check` runs it where there is one.
"""

import copy

import graphed_cases as cases
import pytest
import torch
from debug_helpers import Scalars, logging_of

import telens
import telens.debug as debug
import telens.pytorch as te

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DTYPE = torch.bfloat16


def make_layers():
    return cases.make_layers("cuda", DTYPE)


def train(layers, recipe, **kwargs):
    return cases.train(layers, recipe, "cuda", DTYPE, **kwargs)


@pytest.mark.parametrize("name", cases.RECIPES)
def test_layers_train_as_without_graphs(ops, name):
    recipe = cases.RECIPES[name]
    expected = train(make_layers(), recipe, microbatches=2)
    layers = make_layers()
    cases.graphed(layers, recipe, "cuda", DTYPE)
    cases.assert_same(train(layers, recipe, microbatches=2), expected)


@pytest.mark.parametrize("name", ["delayed", "current"])
@pytest.mark.parametrize("flagged", [False, True], ids=["cast", "kept"])
def test_an_order_trains_as_without_graphs(ops, name, flagged):
    recipe = cases.RECIPES[name]
    layers = [make_layers()[0] for _ in range(2)]
    plain = cases.copies(layers)
    expected = cases.run_pipeline(None, plain, recipe, "cuda", DTYPE, flagged=flagged)
    calls = cases.graphed_pipeline(layers, recipe, "cuda", DTYPE, cache_quantized_params=flagged)
    found = cases.run_pipeline(calls, layers, recipe, "cuda", DTYPE, flagged=flagged)
    cases.assert_same(found, expected)


@pytest.mark.parametrize("name", ["delayed", "current"])
def test_weights_are_kept_for_later_microbatches(ops, name):
    recipe = cases.RECIPES[name]
    kwargs = {"microbatches": 3, "flagged": True}
    expected = train(make_layers(), recipe, **kwargs)
    layers = make_layers()
    cases.graphed(layers, recipe, "cuda", DTYPE, cache_quantized_params=True)
    cases.assert_same(train(layers, recipe, **kwargs), expected)


@pytest.mark.parametrize("main_grad", [False, True], ids=["grad", "main_grad"])
@pytest.mark.parametrize("flagged", [False, True], ids=["cast", "kept"])
def test_weight_gradients_have_separate_graphs(ops, flagged, main_grad):
    recipe = cases.RECIPES["delayed"]
    plain, layers = (cases.make_delayed("cuda", DTYPE, main_grad) for _ in range(2))
    expected = cases.train_delayed(plain, recipe, "cuda", DTYPE, flagged)
    cases.graphed(layers, recipe, "cuda", DTYPE, cache_quantized_params=flagged)
    cases.assert_same(cases.train_delayed(layers, recipe, "cuda", DTYPE, flagged), expected)


def test_replays_on_a_stream_of_the_callers_and_a_reset(ops):
    recipe = cases.RECIPES["delayed"]
    layer, plain = (make_layers()[0] for _ in range(2))
    cases.graphed([layer], recipe, "cuda", DTYPE)
    stream, found, expected = torch.cuda.Stream(), [], []
    for step in range(3):
        for each, seen, options in (
            (layer, found, {"cuda_graph_stream": stream}),
            (plain, expected, {}),
        ):
            x = cases.inputs_of(step, "cuda", DTYPE)
            with te.autocast(recipe=recipe):
                out = each(x, **options)
            out.float().square().mean().backward()
            seen += [out.detach().clone(), x.grad.clone()]
    cases.assert_same(found, expected)
    layer.reset()
    x = cases.inputs_of(9, "cuda", DTYPE)
    with torch.no_grad(), te.autocast(recipe=recipe):
        cases.assert_same([layer(x)], [plain(x)])


def test_histories_continue_and_evaluation_keeps_them(ops):
    recipe = cases.RECIPES["delayed"]
    layers, plain = make_layers(), make_layers()
    for each in (layers, plain):
        train(each, recipe, steps=1)
    cases.graphed(layers, recipe, "cuda", DTYPE)
    for each in (*layers, *plain):
        each.eval()
    x = cases.inputs_of(9, "cuda", DTYPE)
    with torch.no_grad(), te.autocast(recipe=recipe):
        cases.assert_same([layers[0](x)], [plain[0](x)])
    for each in (*layers, *plain):
        each.train()
    cases.assert_same(train(layers, recipe, steps=2), train(plain, recipe, steps=2))


def test_modules_in_evaluation_mode(ops):
    recipe = cases.RECIPES["delayed"]
    layer, plain = (make_layers()[1].eval() for _ in range(2))
    te.make_graphed_callables(layer, cases.sample("cuda", DTYPE), enabled=True, recipe=recipe)
    for step in range(2):
        x = cases.inputs_of(step, "cuda", DTYPE)
        with torch.no_grad(), te.autocast(recipe=recipe):
            cases.assert_same([layer(x)], [plain(x)])


def test_a_transformer_layer_with_a_mask_as_keyword(ops):
    def make():
        torch.manual_seed(5)
        options = {"self_attn_mask_type": "arbitrary", "params_dtype": DTYPE, "device": "cuda"}
        return te.TransformerLayer(64, 128, 4, hidden_dropout=0.0, attention_dropout=0.0, **options)

    shape = (16, 2, 64)
    mask = torch.ones(16, 16, dtype=torch.bool, device="cuda").triu(1)[None, None]
    layer, plain = make(), make()
    recipe = cases.RECIPES["delayed"]
    te.make_graphed_callables(
        layer,
        (torch.zeros(shape, device="cuda", dtype=DTYPE, requires_grad=True),),
        sample_kwargs={"attention_mask": mask},
        enabled=True,
        recipe=recipe,
    )
    for step in range(3):
        values = cases.inputs_of(step, "cuda", DTYPE).detach().reshape(shape)
        seen = []
        for each in (layer, plain):
            x = values.clone().requires_grad_()
            with te.autocast(recipe=recipe):
                out = each(x, attention_mask=mask)
            out.float().square().mean().backward()
            grads = [p.grad.clone() for p in each.parameters() if p.grad is not None]
            each.zero_grad()
            seen.append([out.detach().clone(), x.grad.clone(), *grads])
        cases.assert_same(*seen)


def test_dropout_draws_again_in_each_replay(ops):
    module = torch.nn.Dropout(0.5)
    ones = torch.ones(1024, device="cuda")
    torch.cuda.manual_seed(7)
    te.make_graphed_callables(module, (ones,))
    found = [module(ones).clone() for _ in range(3)]
    torch.cuda.manual_seed(7)
    plain = torch.nn.Dropout(0.5)
    cases.assert_same(found, [plain(ones) for _ in range(3)])
    assert not torch.equal(found[0], found[1])


def test_trackers_draw_the_same_numbers_as_without_graphs(ops):
    x = torch.ones(512, device="cuda")
    seen = []
    for captured in (False, True):
        tracker = te.CudaRNGStatesTracker()
        tracker.add("model-parallel-rng", 11)
        torch.cuda.manual_seed(12)
        module = cases.Forked(tracker)
        if captured:
            te.make_graphed_callables(module, (x,))
        seen.append([module(x).clone() for _ in range(3)])
        with tracker.fork():
            seen[-1].append(torch.rand(8, device="cuda"))
        seen[-1].append(torch.rand(8, device="cuda"))
    cases.assert_same(*seen)


@pytest.mark.parametrize("name", ["none", "delayed"])
def test_session_logs_the_same_as_without_graphs(ops, tmp_path, name):
    recipe = cases.RECIPES[name]
    seen = []
    for captured in (False, True):
        logger = Scalars()
        debug.initialize(
            copy.deepcopy(logging_of(["activation", "weight", "gradient"], ["min", "max", "mean"])),
            log_dir=str(tmp_path / str(captured)),
            statistics_logger=logger,
            default_logging_enabled=False,
        )
        layers = make_layers()
        for number, layer in enumerate(layers):
            layer.set_debug_name(f"layer{number}")
        results = train(layers, recipe, steps=1)
        debug.step()
        if captured:
            cases.graphed(layers, recipe, "cuda", DTYPE)
        debug.step()  # ends the iteration of the warm-up
        for _ in range(3):
            results += train(layers, recipe, steps=1)
            debug.step()
        debug.end_debug()
        # {iteration 1}: what only the warm-up ran in.
        seen.append((results, sorted(row for row in logger.rows if row[2] != 1)))
    cases.assert_same(seen[1][0], seen[0][0])
    assert seen[1][1] == seen[0][1]
    assert {iteration for _, _, iteration in seen[0][1]} == {0, 2, 3, 4}


def test_earlier_graphs_and_generators_outlive_a_refused_capture(ops):
    x, seen = torch.ones(512, device="cuda"), []
    for refused in (False, True):
        tracker = te.CudaRNGStatesTracker()
        tracker.add("model-parallel-rng", 11)
        torch.cuda.manual_seed(12)
        earlier = te.make_graphed_callables(cases.Forked(tracker), (x,))
        stream = torch.cuda.current_stream()
        for _ in range(2 if refused else 0):
            with pytest.raises(telens.UsageError, match="Reads: its forward cannot be captured"):
                te.make_graphed_callables(cases.Reads(tracker), (x,))
        assert torch.cuda.current_stream() == stream
        seen.append([earlier(x).clone(), torch.rand(8, device="cuda")])
        with tracker.fork():
            seen[-1].append(torch.rand(8, device="cuda"))
        later = te.make_graphed_callables(cases.Forked(tracker), (x,))
        seen[-1] += [later(x).clone(), earlier(x).clone()]
    cases.assert_same(*seen)


def test_uncapturable_options_are_rejected_and_training_continues(ops):
    tracker = te.CudaRNGStatesTracker()
    tracker.add("model-parallel-rng", 11)
    x = torch.ones(8, device="cuda", requires_grad=True)
    with pytest.raises(telens.UsageError, match="a graphed Reads: its forward cannot be captured"):
        te.make_graphed_callables(cases.Reads(tracker), (x,))
    torch.cuda.synchronize()
    with pytest.raises(telens.UsageError, match="tensors of a module are on cpu and cuda:0"):
        te.make_graphed_callables(torch.nn.Linear(8, 8), (x,))
    with pytest.raises(telens.UsageError, match="num_warmup_iters is 0"):
        te.make_graphed_callables(torch.nn.Identity(), (x,), num_warmup_iters=0)
    layer = te.make_graphed_callables(torch.nn.Linear(8, 8, device="cuda"), (x.detach(),))
    with pytest.raises(telens.UsageError, match=r"an input is torch\.float32 on cpu"):
        layer(torch.zeros(8))
    layers = make_layers()
    cases.graphed(layers, cases.RECIPES["delayed"], "cuda", DTYPE)
    cases.assert_same(
        train(layers, cases.RECIPES["delayed"], steps=2),
        train(make_layers(), cases.RECIPES["delayed"], steps=2),
    )


@pytest.mark.parametrize("move", ["codes", "values", "dtype"])
@pytest.mark.parametrize("name", ["delayed", "current"])
def test_stored_weights_train_in_place_and_are_an_error_elsewhere(ops, name, move):
    recipe = cases.RECIPES[name]
    moves = cases.moves_of(recipe, "cuda", DTYPE)
    cases.check_stored_weights_that_move(recipe, "cuda", DTYPE, moves[move])
