"""telens diagnose, on products of a weight whose codes are kept over steps of the optimizer."""

import pytest
from recorded_training import LAYERS, STEPS

LAYER = LAYERS[1]
FRESH = 0.025  # relative error of a product


def cast(training, tensor, steps):
    """The tensor is looked at and cast in these steps alone."""
    for step, layer, name, statistic in list(training.values):
        if (layer, name, statistic) != (LAYER, tensor, "std"):
            continue
        if step in steps:
            rms = training.values[step, layer, name, statistic]
            training.values[step, layer, name, "mse"] = (FRESH * rms) ** 2
        else:
            for each in ("l2_norm", "numel", "cur_amax", "mean", "std", "nonfinite"):
                del training.values[step, layer, name, each]


def products(lines, tensor, gemm, error_in):
    for step in range(STEPS):
        lines.record(step, LAYER, tensor, "gemm_relative_error", error_in(step), gemm)


def told(findings, training):
    return [
        (each["cause"], each["layer"], each["tensor"], each["gemm"], each["first_iteration"])
        for each in findings(training)
    ]


@pytest.mark.parametrize(
    ("tensor", "gemm", "other"),
    [("output", "fprop", "activation"), ("dgrad", "dgrad", "gradient")],
)
def test_codes_that_are_kept_while_the_weight_moves_on(
    findings, lines, training, tensor, gemm, other
):
    """The casts of the weight end; products are less off than another operand would make them."""
    cast(training, "weight", range(16))
    cast(training, other, range(STEPS))
    products(lines, tensor, gemm, lambda step: FRESH * (1 + 0.2 * max(0, step - 13)))
    assert told(findings, training) == [("gemm_error", LAYER, None, gemm, 16)]


def test_the_finding_says_how_codes_are_renewed(findings, lines, training):
    cast(training, "weight", range(16))
    cast(training, "activation", range(STEPS))
    products(lines, "output", "fprop", lambda step: FRESH * (3 if step > 15 else 1))
    (finding,) = findings(training)
    assert finding["summary"].startswith("the weight is not cast any more")
    assert "is_first_microbatch" in finding["next_step"]


@pytest.mark.parametrize(
    ("casts", "error"),
    [
        (range(16), lambda step: FRESH * (1.6 if step > 15 else 1)),  # a weight that hardly moves
        (range(STEPS), lambda step: FRESH * (1 + 0.1 * max(0, step - 15))),  # fresh codes
        (range(0, STEPS, 8), lambda step: FRESH * (1 + 0.1 * max(0, step - 15))),  # seldom read
    ],
)
def test_codes_that_cost_no_more_than_fresh_ones(findings, lines, training, casts, error):
    cast(training, "weight", casts)
    cast(training, "activation", range(STEPS))
    products(lines, "output", "fprop", error)
    assert findings(training) == []
