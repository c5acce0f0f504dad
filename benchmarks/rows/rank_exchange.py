"""What ranks send each other for statistics of whole tensors."""

import json
import statistics

from report import Row, at_most

from rows.group import Group

NAMES = [
    "collectives of a step, all statistics of 1,000 tensors on 2 ranks",
    "bytes of a step, all statistics of 1,000 tensors on 2 ranks",
    "time of the exchange, all statistics of 1,000 tensors on 2 ranks",
]


def rank_exchange_rows(programs):
    measured = json.loads(programs.run_python("rank_exchange").splitlines()[-1])
    names = measured["collectives"]
    yield Row(
        NAMES[0],
        len(names),
        "collectives",
        at_most(1),
        {"telens": [len(names)]},
        f"over one group, in this order: {', '.join(names)}",
        if_missed="what has grown since the last steps travels behind the header that says so",
    )
    note = "that each rank brings to them"
    yield Row(NAMES[1], measured["bytes"], "bytes", None, {"telens": [measured["bytes"]]}, note)
    steps = {name: measured[name] for name in ("exchanged", "kept")}
    both = zip(steps["exchanged"], steps["kept"], strict=True)
    difference = statistics.median(exchanged - kept for exchanged, kept in both)
    yield Row(
        NAMES[2],
        1000 * difference,
        "ms",
        None,
        steps,
        "step() of ranks that exchange statistics less that of ranks that keep their own",
    )


GROUP = Group(NAMES, rank_exchange_rows)
