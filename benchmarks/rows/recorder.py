"""The writer of run files."""

import statistics

from report import Row, at_least, at_most

from rows.group import Group

RECORDER = ["records sustained to disk by the writer", "step() with 1,000 records"]


def recorder_rows(programs):
    samples = programs.run("recorder")
    rate = samples["seconds per record"]
    yield Row(
        RECORDER[0],
        1 / statistics.median(rate["telens"]),
        "records/s",
        at_least(4_000_000),
        rate,
        if_missed="two thirds of the writer's time are zlib's, at its fastest level; pushing and "
        "writing need a core each",
    )
    step = samples["step"]
    yield Row(
        RECORDER[1],
        1000 * statistics.median(step["telens"]),
        "ms",
        at_most(1),
        step,
        if_missed="half of the time goes into the text log's lines, which the contract prescribes",
    )


GROUP = Group(RECORDER, recorder_rows)
