"""Statistics of recipes that a run does not have."""

from programs import ratio
from report import Row, at_least

from rows.group import Group

WHAT_IF = ["what-if statistics of four recipes against torch's casts"]


def what_if_rows(programs):
    samples = programs.run("what_if")["four recipes"]
    yield Row(
        WHAT_IF[0],
        ratio(samples, "torch", "telens"),
        "x faster",
        at_least(10),
        samples,
        "underflows and mse of 4M BF16 elements under current scaling, MXFP8, FP8 in 128-blocks "
        "and NVFP4",
    )


GROUP = Group(WHAT_IF, what_if_rows)
