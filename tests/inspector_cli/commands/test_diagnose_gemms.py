"""telens diagnose on products of a weight whose codes are kept while the optimizer changes it."""

import pytest
from recorded_training import LAYERS, STEPS

LAYER = LAYERS[1]
FRESH = 0.025  # relative error of a product
PROVEN, PROBABLE = 0.9, 0.7  # confidences


def cast(training, tensor, steps):
    """The tensor is recorded and cast in these steps only."""
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


def looked_at(lines, **schedule):
    """Adds the configuration of the run, with this schedule for the statistics of the weight's
    casts.
    """
    of_cast = {"enabled": True, "tensors": ["weight"], "stats": ["mse"], **schedule}
    others = {"enabled": True, "tensors": ["activation"], "stats": ["mean"]}
    features = {"LogFp8TensorStats": of_cast, "LogTensorStats": others | {"freq": 15}}
    section = {"enabled": True, "layers": {"layer_types": "all"}}
    lines.config({"a": section | {"transformer_engine": features}})


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
    """The weight is cast in the first 16 steps only, and then the error of the products grows."""
    cast(training, "weight", range(16))
    cast(training, other, range(STEPS))
    products(lines, tensor, gemm, lambda step: FRESH * (1 + 0.2 * max(0, step - 13)))
    assert told(findings, training) == [("gemm_error", LAYER, None, gemm, 16)]


def test_the_finding_says_how_codes_are_renewed(findings, lines, training):
    looked_at(lines)
    cast(training, "weight", range(16))
    cast(training, "activation", range(STEPS))
    products(lines, "output", "fprop", lambda step: FRESH * (3 if step > 15 else 1))
    (finding,) = findings(training)
    assert finding["summary"].startswith("casts of the weight have stopped")
    assert "is_first_microbatch" in finding["next_step"]
    assert finding["confidence"] == PROVEN


@pytest.mark.parametrize(
    ("schedule", "confidence"),
    [
        (None, PROBABLE),  # no configuration is recorded
        ({}, PROVEN),
        ({"end_step": 99}, PROVEN),
        ({"end_step": 15, "enabled": False}, PROVEN),
        ({"start_end_list": [[0, 12], [14, 60]]}, PROVEN),
        ({"end_step": 15}, None),
        ({"start_end_list": [[0, 15], [40, 60]]}, None),
        ({"tensors_struct": [{"tensor": "weight", "end_step": 15}]}, None),
    ],
)
def test_unmonitored_casts_are_not_kept_codes(findings, lines, training, schedule, confidence):
    """The configuration tells whether casts were recorded; without it the finding is less
    certain.
    """
    if schedule is not None:
        looked_at(lines, **schedule)
    cast(training, "weight", range(16))
    cast(training, "activation", range(STEPS))
    products(lines, "output", "fprop", lambda step: FRESH * (1 + 0.2 * max(0, step - 13)))
    found = findings(training)
    assert [each["confidence"] for each in found] == ([confidence] if confidence else [])
    for each in found:
        assert ("no longer recorded" in each["summary"]) == (confidence == PROBABLE)


def test_waiting_section_may_stop_recording(findings, lines, training):
    features = {"LogFp8TensorStats": {"enabled": True, "tensors": ["weight"], "stats": ["mse"]}}
    section = {"enabled": True, "layers": {"layer_types": "all"}, "started_by": "b"}
    lines.config({"a": section | {"transformer_engine": features}})
    cast(training, "weight", range(16))
    cast(training, "activation", range(STEPS))
    products(lines, "output", "fprop", lambda step: FRESH * (1 + 0.2 * max(0, step - 13)))
    assert [each["confidence"] for each in findings(training)] == [PROBABLE]


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
