"""When delayed scaling computes scales (`interval`), and the values that a user's function may
return.
"""

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


@pytest.mark.parametrize("interval", [1, 2, 4])
def test_size_of_saved_state_does_not_depend_on_interval(interval):
    layer = te.Linear(SIZE, SIZE, bias=False)
    sizes = set()
    for factor in (5, 3, 4, 2, 6):
        run_iteration(layer, DelayedScaling(interval=interval, amax_history_len=2), factor)
        sizes.add(layer.get_extra_state().numel())
    # Magic word, two pairs of words, 3 forward and 2 backward tensors: 2 amaxes and a scale each.
    assert sizes == {8 + 2 * 16 + (3 + 2) * 3 * 4}


def test_loads_states_with_appended_pending_iterations():
    """The format of earlier versions: two more words, without a checksum."""
    recipe = DelayedScaling(interval=4, amax_history_len=1)
    layer = te.Linear(SIZE, SIZE, bias=False)
    for factor in (1, 2, 3, 4, 5, 6):
        run_iteration(layer, recipe, factor)
    state = layer.get_extra_state().numpy().copy()
    words = state[: state.size // 4 * 4].view(np.uint32)
    backward = 6 + 3 * 2
    assert (words[4], words[5]) == (3, 2)
    assert (words[backward], words[backward + 2], words[backward + 3]) == (1, 2, 2)
    words[3] = words[5] = words[backward + 3] = 0
    old = np.concatenate([state, np.array([2, 2], np.int64).view(np.uint8)])
    again = te.Linear(SIZE, SIZE, bias=False)
    again.load_state_dict(layer.state_dict())
    again.set_extra_state(torch.from_numpy(old))
    for factor in (7, 8, 9):
        run_iteration(layer, recipe, factor)
        run_iteration(again, recipe, factor)
        assert scales_of(layer) == scales_of(again), factor


# ---- functions of the user


def one_iteration(**functions):
    layer = te.Linear(SIZE, SIZE, bias=False, name="fc1")
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
def test_result_of_wrong_shape_names_the_function(name, function):
    with pytest.raises(telens.ShapeError, match=rf"{name} returned .* for fc1; expected \[3\]"):
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
        text = f"returned a scale that is {fault} for the tensor {tensor} of fc1;"
        assert shown.count(text) == 1, tensor
    assert "tensor output" not in shown  # no tensor uses this slot


def test_bad_scale_blames_amax_function_if_it_is_the_only_one(capfd):
    warns_always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        layer = one_iteration(amax_compute_algo=lambda history: history.amax(0))
        layer.fp8_meta["scaling_fwd"].scale.fill_(float("inf"))
        recipe = DelayedScaling(amax_compute_algo=lambda history: history.amax(0) * float("nan"))
        run_iteration(layer, recipe, 2)
    finally:
        torch.set_warn_always(warns_always)
    shown = capfd.readouterr().err
    assert "the result of amax_compute_algo gives a scale that is infinite" in shown
    assert "scaling_factor_compute_algo" not in shown


def test_good_scales_of_a_function_are_not_warned_about(capfd):
    # The usual formula, which divides by the amax 0 of slots that no tensor uses.
    layer = one_iteration(
        scaling_factor_compute_algo=lambda amax, scale, largest, recipe: largest / amax
    )
    assert capfd.readouterr().err == ""
    assert scales_of(layer)["fwd"] == LARGEST["fwd"] / 2
