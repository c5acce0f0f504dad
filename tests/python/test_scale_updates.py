"""When delayed scaling computes scales (`interval`), and what a user's functions may return."""

import numpy as np
import pytest
import torch

import telens
import telens.pytorch as te
from telens.common.recipe import DelayedScaling

SIZE = 16
LARGEST = {"fwd": np.float32(448), "bwd": np.float32(57344)}
SLOTS = {"fwd": 0, "bwd": 0}  # of the input and of the output's gradient


class Expected:
    """The scale of one tensor from its amaxes, as documented."""

    def __init__(self, largest, interval, length, algorithm):
        self.largest, self.interval = largest, interval
        self.length, self.algorithm = length, algorithm
        self.amaxes, self.scale = [], np.float32(1)

    def end_iteration(self, amax):
        self.amaxes.append(np.float32(amax))
        if len(self.amaxes) % self.interval == 0:
            window = self.amaxes[-self.length :]
            amax = window[-1] if self.algorithm == "most_recent" else max(window)
            self.scale = self.largest / amax


def run_iteration(layer, recipe, factor):
    """Returns the amaxes of the input and of the output's gradient."""
    x = torch.full((SIZE, SIZE), float(factor))
    gradient = torch.full((SIZE, SIZE), 1 / float(factor))
    with te.autocast(recipe=recipe):
        out = layer(x)
    out.backward(gradient)
    return {"fwd": factor, "bwd": 1 / factor}


def scales_of(layer):
    return {
        direction: np.float32(layer.fp8_meta[f"scaling_{direction}"].scale[slot])
        for direction, slot in SLOTS.items()
    }


@pytest.mark.parametrize("algorithm", ["max", "most_recent"])
@pytest.mark.parametrize(("interval", "length"), [(1, 1), (3, 1), (3, 2), (4, 8), (20, 4)])
def test_scales_are_computed_in_every_interval_th_iteration(interval, length, algorithm):
    recipe = DelayedScaling(interval=interval, amax_history_len=length, amax_compute_algo=algorithm)
    layer = te.Linear(SIZE, SIZE, bias=False)
    expected = {each: Expected(LARGEST[each], interval, length, algorithm) for each in LARGEST}
    factors = np.random.default_rng(1).permutation(np.arange(1, 18))
    for factor in factors:
        amaxes = run_iteration(layer, recipe, int(factor))
        for direction, amax in amaxes.items():
            expected[direction].end_iteration(amax)
        # The backward's windows are updated at the end of the backward.
        assert scales_of(layer) == {each: expected[each].scale for each in LARGEST}, factor


def test_a_checkpoint_keeps_the_iterations_since_the_last_scales():
    recipe = DelayedScaling(interval=4, amax_history_len=1)
    layer = te.Linear(SIZE, SIZE, bias=False)
    for factor in (1, 2, 3, 4, 5, 6):
        run_iteration(layer, recipe, factor)
    again = te.Linear(SIZE, SIZE, bias=False)
    again.load_state_dict(layer.state_dict())
    for factor in (7, 8, 9):
        run_iteration(layer, recipe, factor)
        run_iteration(again, recipe, factor)
        assert scales_of(layer) == scales_of(again), factor
    assert scales_of(layer)["fwd"] == LARGEST["fwd"] / 8


def test_the_saved_state_has_the_known_bytes_when_no_iteration_is_pending():
    states = {}
    for interval in (1, 2):
        layer = te.Linear(SIZE, SIZE, bias=False)
        for factor in (5, 3):
            run_iteration(layer, DelayedScaling(interval=interval, amax_history_len=2), factor)
        states[interval] = layer.get_extra_state()
    assert states[1].numel() == states[2].numel()
    run_iteration(layer, DelayedScaling(interval=2, amax_history_len=2), 4)
    assert layer.get_extra_state().numel() == states[1].numel() + 16


# ---- functions of the user


def one_iteration(**functions):
    layer = te.Linear(SIZE, SIZE, bias=False)
    run_iteration(layer, DelayedScaling(**functions), 2)
    return layer


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("scaling_factor_compute_algo", lambda amax, scale, largest, recipe: scale[:1]),
        ("scaling_factor_compute_algo", lambda amax, scale, largest, recipe: scale[None]),
        ("scaling_factor_compute_algo", lambda amax, scale, largest, recipe: scale.sum()),
        ("amax_compute_algo", lambda history: history[0, :1]),
        ("amax_compute_algo", lambda history: history),
    ],
)
def test_a_result_of_another_shape_is_an_error_that_names_the_function(name, function):
    with pytest.raises(telens.ShapeError, match=rf"{name} returned .* expected \[3\], one value"):
        one_iteration(**{name: function})


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (lambda amax, scale, largest, recipe: -scale, "negative"),
        (lambda amax, scale, largest, recipe: scale * float("nan"), "NaN"),
        (lambda amax, scale, largest, recipe: scale * float("inf"), "infinite"),
        (lambda amax, scale, largest, recipe: scale * 0, "0"),
    ],
)
def test_a_scale_that_is_not_a_positive_number_is_warned_about(function, fault, capfd):
    telens_warns_always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        one_iteration(scaling_factor_compute_algo=function)
    finally:
        torch.set_warn_always(telens_warns_always)
    shown = capfd.readouterr().err
    for tensor in ("input", "weight", "grad_output"):
        text = f"returned a scale that is {fault} for the tensor {tensor} of a layer"
        assert shown.count(text) == 1, tensor
    assert "tensor output" not in shown  # no tensor uses this slot


def test_good_scales_of_a_function_are_not_warned_about(capfd):
    # The usual formula, which divides by the amax 0 of slots that no tensor uses.
    layer = one_iteration(
        scaling_factor_compute_algo=lambda amax, scale, largest, recipe: largest / amax
    )
    assert capfd.readouterr().err == ""
    assert scales_of(layer)["fwd"] == LARGEST["fwd"] / 2
