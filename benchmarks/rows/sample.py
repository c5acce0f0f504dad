"""The training step of the GPT sample."""

import statistics

from programs import ratio
from report import Row, at_most

from rows.group import Group

SAMPLE = [
    "sample's training step, all statistics, freq 1",
    "sample's training step, all statistics, freq 10",
    "bytes per record of the sample's run",
]


def sample_rows(programs):
    samples = programs.run("sample_step")
    step = samples["training step"]
    yield Row(
        SAMPLE[0], ratio(step, "all statistics, freq 1", "no session"), "x", at_most(1.10), step
    )
    yield Row(
        SAMPLE[1], ratio(step, "all statistics, freq 10", "no session"), "x", at_most(1.02), step
    )
    size = samples["bytes per record"]
    yield Row(SAMPLE[2], statistics.median(size["telens"]), "bytes", at_most(8), size)


GROUP = Group(SAMPLE, sample_rows)
