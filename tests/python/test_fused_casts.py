"""Norms and activations that write codes instead of tensors.

They give the same bits as the path of a watched layer, and run if no code reads the tensor.
"""

import contextlib
import itertools
import subprocess
import sys

import pytest
import torch
from activation_names import ACTIVATIONS
from debug_helpers import logging_of
from fused_helpers import (
    ACTIVATION_CAST,
    ALL_TENSORS,
    FEATURES,
    GRADIENT_CAST,
    HIDDEN,
    NORM_CASTS,
    ROWS,
    STEPS,
    assert_same_training,
    training,
)

import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling

NORMS = ("LayerNorm", "RMSNorm")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def linear(dtype=torch.bfloat16, **options):
    return lambda: te.LayerNormLinear(FEATURES, HIDDEN, params_dtype=dtype, name="layer", **options)


def mlp(dtype=torch.bfloat16, **options):
    return lambda: te.LayerNormMLP(FEATURES, HIDDEN, params_dtype=dtype, name="layer", **options)


def casts(counts: dict[str, int]) -> tuple[int, int, int]:
    """Returns how many norms, activations and gradients of activations were fused with their
    cast.
    """
    norms = sum(counts.get(name, 0) for name in NORM_CASTS)
    return norms, counts.get(ACTIVATION_CAST, 0), counts.get(GRADIENT_CAST, 0)


def assert_fused_as_watched(tmp_path, make, fused, **arguments):
    """Asserts that a training has the bits of one in which everything is watched; ``fused``: the
    number of fused casts without watching.
    """
    actual, counts = training(make, **arguments)
    expected, watched = training(make, tensors=ALL_TENSORS, log_dir=tmp_path, **arguments)
    assert casts(counts) == fused
    assert casts(watched) == (0, 0, 0)
    assert_same_training(actual, expected)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_that_casts_changes_no_bit(tmp_path, norm, zero_centered, dtype):
    make = linear(dtype, normalization=norm, zero_centered_gamma=zero_centered)
    assert_fused_as_watched(tmp_path, make, (STEPS, 0, 0), dtype=dtype)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", NORMS)
def test_an_activation_that_casts_changes_no_bit(tmp_path, activation, norm):
    make = mlp(activation=activation, normalization=norm)
    assert_fused_as_watched(tmp_path, make, (STEPS, STEPS, STEPS))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
def test_fused_gradient_cast_changes_no_bit(tmp_path, dtype, bias):
    make = mlp(dtype, bias=bias, activation="swiglu")
    assert_fused_as_watched(tmp_path, make, (STEPS, STEPS, STEPS), dtype=dtype)


@pytest.mark.parametrize(
    ("tensors", "fused"),
    [
        (("weight",), (STEPS, STEPS, STEPS)),
        (("output", "wgrad", "dgrad"), (STEPS, STEPS, STEPS)),
        (("activation",), (0, 0, STEPS)),
        (("gradient",), (STEPS, STEPS, 0)),
    ],
    ids=["weight", "products", "activation", "gradient"],
)
def test_unwatched_tensors_take_the_fused_path(tmp_path, tensors, fused):
    make = mlp(activation="geglu")
    bits, counts = training(make, tensors=tensors, log_dir=tmp_path)
    assert casts(counts) == fused
    assert_same_training(bits, training(make)[0])


@pytest.mark.parametrize("make", [linear(), mlp()], ids=["linear", "mlp"])
def test_returned_normalized_input_is_not_fused(tmp_path, make):
    plain = make()
    options = {"return_layernorm_output": True}
    returning = linear(**options) if isinstance(plain, te.LayerNormLinear) else mlp(**options)
    bits, counts = training(returning, run=lambda module, x, step: module(x)[0])
    assert casts(counts)[0] == 0
    assert_same_training(bits, training(make)[0])


def with_parameters(make, trained: str):
    """Only parameters whose names contain ``trained`` have gradients."""

    def make_frozen():
        module = make()
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(trained in name)
        return module

    return make_frozen


@pytest.mark.parametrize("trained", ["layer_norm", "bias", "fc1_weight", "fc2_weight", "nothing"])
def test_frozen_parameters_change_no_bit(tmp_path, trained):
    make = with_parameters(mlp(), trained)
    assert_fused_as_watched(tmp_path, make, (STEPS, STEPS, STEPS))


def kept_weights(module, x, step):
    """Two micro-batches in each step; the second one uses the weights kept from the first."""
    first, second = x.chunk(2)
    return torch.cat(
        [module(first, is_first_microbatch=True), module(second, is_first_microbatch=False)]
    )


def recomputed(module, x, step):
    return te.checkpoint(module, x)


def offloaded(module, x, step):
    """Copies what is saved for the backward, as offloading does."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
        return module(x)


@pytest.mark.parametrize(("run", "times"), [(kept_weights, 2), (recomputed, 2), (offloaded, 1)])
@pytest.mark.parametrize("make", [linear(), mlp(activation="swiglu")], ids=["linear", "mlp"])
def test_fused_path_matches_watched_path_for_every_call(tmp_path, make, run, times):
    is_mlp = isinstance(make(), te.LayerNormMLP)
    forwards = times * STEPS
    backwards = STEPS * (2 if run is kept_weights else 1)
    fused = (forwards, forwards, backwards) if is_mlp else (forwards, 0, 0)
    assert_fused_as_watched(tmp_path, make, fused, run=run)


@pytest.mark.parametrize(
    ("override", "fused"),
    [((True, False, False), (0, 0, STEPS)), ((False, True, False), (STEPS, STEPS, 0)),
     ((False, False, True), (0, 0, 0))],
)  # fmt: skip
def test_gemms_in_high_precision_get_their_tensors(tmp_path, override, fused):
    recipe = DelayedScaling(amax_history_len=4, override_linear_precision=override)
    bits, counts = training(mlp(), recipe=recipe)
    assert casts(counts) == fused
    expected, _ = training(mlp(), recipe=recipe, tensors=ALL_TENSORS, log_dir=tmp_path)
    assert_same_training(bits, expected)


def forward_casts(make, x, **region) -> tuple[int, int, int]:
    module = make()
    with torch.profiler.profile() as profile, te.autocast(**region):
        module(x)
    return casts({event.key: event.count for event in profile.key_averages()})


def test_only_scales_that_are_known_before_the_tensor_are_fused():
    x = torch.randn(ROWS, FEATURES, dtype=torch.bfloat16)
    assert forward_casts(mlp(), x, enabled=True, recipe=DelayedScaling()) == (1, 1, 0)
    assert forward_casts(mlp(), x, enabled=True, recipe=Float8CurrentScaling()) == (0, 0, 0)
    assert forward_casts(mlp(), x, enabled=False) == (0, 0, 0)
    assert forward_casts(mlp(), x, enabled=False, calibrating=True) == (0, 0, 0)
    assert forward_casts(mlp(), x[:0], enabled=True, recipe=DelayedScaling()) == (0, 0, 0)


def test_evaluation_has_the_outputs_of_training():
    module = mlp(activation="swiglu")()
    x = torch.randn(ROWS, FEATURES, dtype=torch.bfloat16)
    with te.autocast(enabled=True, recipe=DelayedScaling()):
        trained = module(x)
        with torch.no_grad():
            evaluated = module(x)
    with torch.inference_mode(), te.autocast(enabled=True, recipe=DelayedScaling()):
        module(x)
    assert torch.equal(trained, evaluated)
    assert trained.requires_grad


def gradients_of_a_kept_graph(make, tensors, log_dir) -> list[torch.Tensor]:
    torch.manual_seed(3)
    watching = contextlib.nullcontext()
    if tensors:
        watching = debug.session(logging_of(list(tensors), ["min"]), log_dir=log_dir)
    with watching:
        module = make()
        x = torch.randn(ROWS, FEATURES, dtype=torch.bfloat16, requires_grad=True)
        with te.autocast(enabled=True, recipe=DelayedScaling()):
            out = module(x)
        grad = torch.randn_like(out)
        inputs = [x, *module.parameters()]
        all_of_them = torch.autograd.grad(out, inputs, grad, retain_graph=True)
        of_the_input = torch.autograd.grad(out, inputs[:1], grad, retain_graph=True)
        of_the_last = torch.autograd.grad(out, inputs[-1:], grad, retain_graph=True)
        return [*all_of_them, *of_the_input, *of_the_last, *torch.autograd.grad(out, inputs, grad)]


def test_parts_of_a_kept_graph_have_the_gradients_of_the_watched_path(tmp_path):
    actual = gradients_of_a_kept_graph(mlp(), (), tmp_path)
    expected = gradients_of_a_kept_graph(mlp(), ALL_TENSORS, tmp_path)
    for ours, theirs in zip(actual, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_anomaly_detection_accepts_gradient_placeholders():
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        bits, counts = training(mlp(activation="swiglu"))
    assert casts(counts) == (STEPS, STEPS, STEPS)
    assert_same_training(bits, training(mlp(activation="swiglu"))[0])


FORMAT = {"e4m3": 0, "e5m2": 1}


def one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float32)


def unfused_codes(ops, y, scale, amax, format_id, columnwise):
    rows = y.reshape(-1, y.shape[-1])
    if not columnwise:
        return ops.quantize_fp8(rows, scale, amax, format_id), None
    return ops.quantize_fp8_both(rows, scale, amax, format_id)


def assert_codes(actual, expected):
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columnwise", [False, True])
def test_fused_operators_are_their_pairs(telens_ops, dtype, columnwise):
    x = torch.randn(3, 8, 48).to(dtype)
    x[0, 0, :3] = torch.tensor([float("nan"), float("inf"), -0.0]).to(dtype)
    weight, bias = torch.randn(48), torch.randn(48)
    for format_id in FORMAT.values():
        amax, expected_amax = one(0.5), one(0.5)
        cast = (one(50.0), amax, format_id, columnwise)
        y, *statistics = telens_ops.layer_norm_forward(x, weight, bias, 1e-5, True)
        codes = unfused_codes(telens_ops, y, one(50.0), expected_amax, format_id, columnwise)
        made = telens_ops.layer_norm_quantize(x, weight, bias, 1e-5, True, *cast)
        assert_codes(made[:2], codes)
        for ours, theirs in zip(made[2:], statistics, strict=True):
            assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())
        assert amax.isnan().all()
        assert expected_amax.isnan().all()

        y, rstd = telens_ops.rms_norm_forward(x[1:], weight, 1e-5, False)
        codes = unfused_codes(telens_ops, y, one(50.0), None, format_id, columnwise)
        cast = (one(50.0), None, format_id, columnwise)
        made = telens_ops.rms_norm_quantize(x[1:], weight, 1e-5, False, *cast)
        assert_codes(made[:2], codes)
        assert torch.equal(made[2], rstd)

        y = telens_ops.activation_forward(x, "swiglu")
        codes = unfused_codes(telens_ops, y, one(50.0), None, format_id, columnwise)
        assert_codes(telens_ops.activation_quantize(x, "swiglu", *cast), codes)

        grad = torch.randn(3, 8, 24).to(dtype)
        dx = telens_ops.activation_backward(grad, x, "swiglu")
        codes = unfused_codes(telens_ops, dx, one(50.0), None, format_id, columnwise)
        made = telens_ops.activation_backward_quantize(grad, x, "swiglu", *cast, torch.float32)
        assert_codes(made[:2], codes)
        sums = dx.reshape(-1, 48).sum(0, dtype=torch.float32)
        assert torch.equal(made[2].nan_to_num(), sums.nan_to_num())
        made = telens_ops.activation_backward_quantize(grad, x, "swiglu", *cast, None)
        assert made[2] is None


def test_fused_operators_have_the_shapes_of_their_results_on_meta(telens_ops):
    x = torch.empty(3, 8, 48, device="meta", dtype=torch.bfloat16)
    scale = torch.empty(1, device="meta")
    cast = (scale, None, 0, True)
    weight = torch.empty(48, device="meta")
    codes, transposed, mean, rstd = telens_ops.layer_norm_quantize(
        x, weight, weight, 1e-5, False, *cast
    )
    assert (codes.shape, transposed.shape) == ((24, 48), (48, 24))
    assert (mean.shape, rstd.shape) == ((24,), (24,))
    assert telens_ops.rms_norm_quantize(x, weight, 1e-5, False, *cast)[2].shape == (24,)
    assert telens_ops.activation_quantize(x, "geglu", *cast)[1].shape == (24, 24)
    made = telens_ops.activation_backward_quantize(x, x, "gelu", *cast, torch.bfloat16)
    assert made[2].shape == (48,)
    assert made[2].dtype == torch.bfloat16


def test_fused_operators_reject_the_inputs_of_unfused_ones(telens_ops):
    x, weight = torch.randn(16, 32), torch.ones(32)
    with pytest.raises(RuntimeError, match="format"):
        telens_ops.rms_norm_quantize(x, weight, 1e-5, False, one(1.0), None, 2, True)
    with pytest.raises(RuntimeError, match="scale"):
        telens_ops.activation_quantize(x, "gelu", torch.ones(2), None, 0, True)
    with pytest.raises(RuntimeError, match="expected \\[rows, columns\\]"):
        telens_ops.bias_gradient(x[0], torch.float32)
    with pytest.raises(RuntimeError, match="floating-point"):
        telens_ops.bias_gradient(x, torch.int32)


@pytest.mark.parametrize("algorithm", ["max", "most_recent"])
@pytest.mark.parametrize("power_of_two", [False, True])
def test_windows_are_updated_as_one_after_the_other(telens_ops, algorithm, power_of_two):
    generator = torch.Generator().manual_seed(5)
    histories = [
        torch.rand(length, slots, generator=generator)
        for length, slots in itertools.product((1, 2, 16, 1024), (2, 3))
    ]
    histories[3][0, 1] = float("nan")
    histories[4][0] = 0
    histories[5][0, 2] = float("inf")
    scales = [torch.rand(h.shape[1], generator=generator) + 1 for h in histories]
    maxima = [448.0 if h.shape[1] == 3 else 57344.0 for h in histories]
    expected_histories = [h.clone() for h in histories]
    expected_scales = [s.clone() for s in scales]
    for history, scale, maximum in zip(expected_histories, expected_scales, maxima, strict=True):
        amax = telens_ops.amax_of_history(history, algorithm)
        telens_ops.update_scale(amax, scale, torch.full_like(scale, maximum), 1, power_of_two)
        telens_ops.advance_history(history)
    telens_ops.update_windows(histories, scales, maxima, algorithm, 1, power_of_two)
    for ours, theirs in zip(histories + scales, expected_histories + expected_scales, strict=True):
        assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))


def test_windows_that_do_not_fit_are_refused(telens_ops):
    history, scale = torch.zeros(4, 3), torch.ones(3)
    with pytest.raises(RuntimeError, match="equal numbers"):
        telens_ops.update_windows([history], [scale, scale], [448.0], "max", 0, False)
    with pytest.raises(RuntimeError, match="window 1 has 3 slots and 2 scales"):
        telens_ops.update_windows(
            [history, history], [scale, scale[:2]], [448.0, 448.0], "max", 0, False
        )
    with pytest.raises(RuntimeError, match='expected "max" or "most_recent"'):
        telens_ops.update_windows([history], [scale], [448.0], "newest", 0, False)
    with pytest.raises(RuntimeError, match="one device"):
        telens_ops.update_windows([history], [scale.to("meta")], [448.0], "max", 0, False)


def test_all_layers_of_a_region_are_updated_by_one_operator():
    model = torch.nn.Sequential(
        linear()(), te.Linear(HIDDEN, FEATURES, params_dtype=torch.bfloat16)
    )
    model.append(mlp()())
    x = torch.randn(ROWS, FEATURES, dtype=torch.bfloat16)
    with torch.profiler.profile() as profile:
        with te.autocast(enabled=True, recipe=DelayedScaling()):
            out = model(x)
        out.float().sum().backward()
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["telens::update_windows"] == 2, "once a direction"
    assert "telens::update_scale" not in counts


def test_user_functions_update_their_layers_among_others():
    def doubled(amax, scale, fp8_max, recipe):
        return torch.full_like(scale, 2.0) + 0 * fp8_max

    own = DelayedScaling(amax_history_len=4, scaling_factor_compute_algo=doubled)
    by_formula = DelayedScaling(amax_history_len=4)
    first = te.Linear(FEATURES, FEATURES, params_dtype=torch.bfloat16)
    second = te.Linear(FEATURES, FEATURES, params_dtype=torch.bfloat16)
    alone = te.Linear(FEATURES, FEATURES, params_dtype=torch.bfloat16)
    alone.load_state_dict(second.state_dict())
    x = torch.randn(ROWS, FEATURES, dtype=torch.bfloat16)
    for _ in range(2):
        with te.autocast(enabled=True, recipe=own):
            first(x)
            with te.autocast(enabled=True, recipe=by_formula):
                second(x)
        with te.autocast(enabled=True, recipe=by_formula):
            alone(x)
    states = [layer.state_dict()["_extra_state"] for layer in (first, second, alone)]
    assert torch.equal(states[1], states[2])
    assert not torch.equal(states[0], states[1])


def test_two_part_backward_matches_a_single_backward():
    """As in zero-bubble pipelines: first the inputs' gradients, then those of the weights, from the
    gradient that was kept at fc1's node.
    """

    def forward():
        torch.manual_seed(5)
        module = mlp()()
        x = torch.randn(32, FEATURES, dtype=torch.bfloat16, requires_grad=True)
        with te.autocast(enabled=True, recipe=DelayedScaling()):
            out = module(x)
        return x, out, [module.fc1_weight, module.fc1_bias], torch.randn_like(out)

    _, out, parameters, grad = forward()
    whole = torch.autograd.grad(out, parameters, grad)

    x, out, parameters, grad = forward()
    node = node_before(out.grad_fn, torch.autograd.graph.get_gradient_edge(parameters[0]).node)
    kept = []
    handle = node.register_prehook(kept.append)
    torch.autograd.grad(out, [x], grad, retain_graph=True)
    handle.remove()
    edge = torch.autograd.graph.GradientEdge(node, 0)
    parts = torch.autograd.grad((edge,), parameters, grad_outputs=kept[0])
    for of_whole, of_parts in zip(whole, parts, strict=True):
        assert of_whole.abs().sum() > 0
        assert torch.equal(of_parts, of_whole)


def node_before(node, leaf, seen=None):
    """Returns the node whose result is passed to the leaf."""
    seen = set() if seen is None else seen
    if node is None or node in seen:
        return None
    seen.add(node)
    if any(following is leaf for following, _ in node.next_functions):
        return node
    found = (node_before(following, leaf, seen) for following, _ in node.next_functions)
    return next(filter(None, found), None)


FAKE_FIRST = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
import telens.pytorch as te
from telens.common.recipe import DelayedScaling

def gradient():
    layer = te.LayerNormMLP(64, 128, params_dtype=torch.bfloat16)
    x = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
    with te.autocast(recipe=DelayedScaling()):
        out = layer(x)
    out.sum().backward()
    return x.grad

with FakeTensorMode():
    assert gradient().shape == (32, 64)
with torch.autograd.detect_anomaly(check_nan=True):  # looks into placeholders
    assert gradient().isfinite().all()
"""


def test_placeholders_of_fake_tensors_reach_no_real_training():
    """Runs in its own process, because the first placeholder, here a fake tensor, is kept."""
    subprocess.run([sys.executable, "-c", FAKE_FIRST], check=True)
