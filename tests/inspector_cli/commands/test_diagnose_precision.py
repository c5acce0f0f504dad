"""telens diagnose, on ledgers of GEMMs that leave low precision, by chance or on purpose."""

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
def test_high_precision_that_the_recipe_or_a_section_asks_for_is_no_finding(
    findings, lines, training, reason, told
):
    states(lines, "dgrad", reason)
    found = [(each["cause"], each["layer"], each["gemm"]) for each in findings(training)]
    assert found == ([("gemm_precision", LAYER, "dgrad")] if told else [])
