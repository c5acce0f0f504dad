"""telens diagnose on ledgers of GEMMs that leave low precision by accident or on purpose."""

import json

import pytest
from recorded_training import LAYERS

LAYER = LAYERS[1]


def states(lines, gemm, reason):
    """The GEMM runs in FP8, and from iteration 9 on in BF16."""
    for iteration, number, ran, cause in ((0, 0, "E4M3", "the recipe"), (9, 1, "BF16", reason)):
        entries = {}
        for tensor in ("gradient", "weight"):
            entries |= {
                f"{tensor} requested": ran,
                f"{tensor} ran": ran,
                f"{tensor} cause": cause,
            }
        lines.ledger(iteration, LAYER, gemm, number, entries)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("outside of an autocast region", True),
        ("override_linear_precision of the recipe", False),
        ("backward_override='dequantized' of the recipe", False),
        ("backward_override='high_precision' of the recipe", False),
        ("DisableFP8Layer in section `a`", False),
    ],
)
def test_requested_high_precision_is_ignored(findings, lines, training, reason, told):
    states(lines, "dgrad", reason)
    found = [(each["cause"], each["layer"], each["gemm"]) for each in findings(training)]
    assert found == ([("gemm_precision", LAYER, "dgrad")] if told else [])


@pytest.mark.parametrize(
    ("ran", "scales", "casts"),
    [
        (["E4M3 under tensor scaling", "BF16"], None, None),
        (["E4M3 under block scaling", "E4M3 under tensor scaling"], None, None),
        (["E4M3 under block scaling", "BF16"], "block scaling", None),
        (["E4M3 under big block scaling", "E2M1 under block scaling"], "big block and block", None),
        (["BF16", "FP32"], "high precision", "high precision"),
        ([], None, None),
    ],
)
def test_statistics_that_cannot_be_there_are_not_meaningful(
    telens, lines, training, tmp_path, ran, scales, casts
):
    """The ledger says what ran: statistics of one scale need a tensor with one scale, those of a
    cast need a cast.
    """
    for number, precision in enumerate(ran):
        cause = {"weight requested": precision, "weight ran": precision, "weight cause": "wanted"}
        lines.ledger(0, LAYERS[number], "fprop", number, cause)
    log_dir = training.write(lines, tmp_path)
    told = json.loads(telens("diagnose", log_dir, "--format", "json").stdout)
    unrecorded = {each["cause"]: each["lacks"] for each in told["not_recorded"]}
    meaningless = {each["cause"]: each for each in told["not_meaningful"]}
    assert not set(unrecorded) & set(meaningless)
    for cause, under in (("overflow", scales), ("wrong_margin", scales), ("underflow", casts)):
        assert (cause in unrecorded) == (under is None), cause
        if under is not None:
            assert meaningless[cause]["under"].startswith(under)
    shown = telens("diagnose", log_dir, "--missing").stdout
    if scales is not None:
        assert meaningless["overflow"]["statistics"] == ["stale_saturated%", "scale_headroom"]
        assert f"no meaning under {scales}" in " ".join(shown.split())
        assert "skipped overflow: needs" not in shown
    else:
        assert "no meaning under" not in shown
