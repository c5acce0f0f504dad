"""telens diagnose on scales of micro-batches, on tensors that grow by chance, and on long
histories.
"""

import math

import pytest
from recorded_training import LAYERS, STEPS, where

LAYER, TENSOR = LAYERS[1], "activation"
FIRST = 10


@pytest.mark.parametrize("scales_of_an_iteration", [1, 4])
def test_single_micro_batch_scale_is_not_wrong(findings, training, scales_of_an_iteration):
    bits = -5
    for layer in LAYERS:
        training.follow_with_scales(layer, TENSOR)
    training.follow_with_scales(LAYER, TENSOR, wrong_from=FIRST, bits=bits)
    for step in range(1, STEPS):
        for layer in LAYERS:
            several = scales_of_an_iteration > 1 and layer == LAYER and step >= FIRST
            amax = training.values[step - 1, layer, TENSOR, "cur_amax"]
            # The first micro-batch has the scale of the iteration before.
            training.values[step, layer, TENSOR, "scale_inv_max"] = amax / 448
            smallest = 2**bits if several else 1
            training.values[step, layer, TENSOR, "scale_inv_min"] = amax / 448 * smallest
    told = [where(each) for each in findings(training) if each["cause"] == "wrong_scale"]
    assert told == ([] if scales_of_an_iteration > 1 else [("wrong_scale", LAYER, TENSOR, FIRST)])


def clip(training, steps, room):
    for step in steps:
        training.values[step, LAYER, TENSOR, "stale_saturated%"] = 3.0
        assert math.isclose(
            training.values[step, LAYER, TENSOR, "scale_headroom"], room, abs_tol=0.3
        )


@pytest.mark.parametrize(
    ("steps", "follows", "told"),
    [(11, True, False), (12, True, True), (5, False, False), (6, False, True)],
)
def test_growing_tensor_clips_after_12_iterations(findings, training, steps, follows, told):
    for step in range(FIRST, FIRST + steps):
        training.scale(LAYER, TENSOR, step, 2.0 ** (step - FIRST + 1), last=step)
    training.follow_with_scales(LAYER, TENSOR)
    clip(training, range(FIRST, FIRST + steps), room=-1)
    if not follows:  # the scale moves by less than it lacks
        for step in range(FIRST, FIRST + steps):
            training.values[step, LAYER, TENSOR, "scale_jump"] += 0.5
    found = [where(each) for each in findings(training) if each["cause"] == "overflow"]
    assert found == ([("overflow", LAYER, TENSOR, FIRST)] if told else [])


def follow_the_largest(training, held_from, window=16):
    """The scale follows the largest amax of a history, and is constant from `held_from` on."""
    amaxes = [training.values[step, LAYER, TENSOR, "cur_amax"] for step in range(STEPS)]
    before = None
    for step in range(1, STEPS):
        held = before is not None and step >= held_from
        stands_for = before if held else math.log2(max(amaxes[max(0, step - window) : step]))
        staleness = math.log2(amaxes[step]) - stands_for
        numbers = {
            "scale_staleness": staleness,
            "scale_headroom": -staleness,
            "scale_jump": 0 if before is None else before - stands_for,
            "stale_saturated%": float(staleness > 0),
            "scale_age": 0,
        }
        for statistic, value in numbers.items():
            training.values[step, LAYER, TENSOR, statistic] = value
        before = stands_for


@pytest.mark.parametrize(("held_from", "told"), [(15, True), (STEPS, False)])
def test_scale_held_after_burst_becomes_stale(findings, training, held_from, told):
    """Until then the scale is right for its history, although it is far from the tensor's own
    amax.
    """
    for step, factor in ((4, 40), (6, 50), (8, 60), (17, 80), (21, 120), (25, 150)):
        training.scale(LAYER, TENSOR, step, factor, last=step)
    follow_the_largest(training, held_from)
    found = [where(each) for each in findings(training) if each["cause"] == "stale_scale"]
    assert found == ([("stale_scale", LAYER, TENSOR, 18)] if told else [])


@pytest.mark.parametrize("amax", [math.nan, math.inf])
def test_history_holds_scale_after_nonfinite_amax(findings, training, amax):
    """A history with a non-finite amax has no largest one; the non-finite value is the finding."""
    for step in (16, 17, 20):
        training.scale(LAYER, TENSOR, step, 2, last=step)
    follow_the_largest(training, held_from=13)
    for statistic in ("cur_amax", "scale_staleness", "scale_headroom"):
        training.values[12, LAYER, TENSOR, statistic] = amax
    training.values[12, LAYER, TENSOR, "nonfinite"] = 1
    found = findings(training)
    assert where(found[0]) == ("nonfinite", LAYER, TENSOR, 12)
    told = found + [each for finding in found for each in finding["consequences"]]
    assert "stale_scale" not in [each["cause"] for each in told]


@pytest.mark.parametrize(("later", "told"), [(1000, False), (1100, True)])
def test_nonfinite_amax_leaves_the_history(findings, training, later, told):
    """After 1024 iterations, a constant scale of a growing tensor is stale."""
    for step in (16, 17, 20):
        training.scale(LAYER, TENSOR, step, 2, last=step)
    follow_the_largest(training, held_from=13)
    for statistic in ("cur_amax", "scale_staleness", "scale_headroom"):
        training.values[12, LAYER, TENSOR, statistic] = math.nan
    training.values = {
        (step if step <= 12 else step + later, *place): value
        for (step, *place), value in training.values.items()
    }
    found = [each for each in findings(training) if each["cause"] == "stale_scale"]
    assert [where(each)[1:3] for each in found] == ([(LAYER, TENSOR)] if told else [])
