"""A layer that is called from Paddle."""

import statistics

from programs import ratio
from report import Row, at_most

from rows.group import Group

PADDLE_LINEAR = ["FP32 Linear of telens.paddle over paddle.nn.Linear, tiny"]


def paddle_linear_rows(programs):
    lines = programs.run_paddle("linear_from_paddle").splitlines()
    names = ["telens", "paddle", "crossings", "empty PyLayer", "core", "torch", "in turn"]
    samples = {
        name: [float(each) for each in line.split()]
        for name, line in zip(names, lines, strict=True)
    }
    times = {name: 1e6 * statistics.median(seconds) for name, seconds in samples.items()}
    yield Row(
        PADDLE_LINEAR[0],
        ratio(samples, "telens", "paddle"),
        "x",
        at_most(1.5),
        samples,
        if_missed="two frameworks in one step slow each other down, most likely in the "
        f"processor's caches: paddle.nn.Linear takes {times['paddle']:.0f} us, torch.nn.Linear "
        f"{times['torch']:.0f}, and both in turn {times['in turn']:.0f}",
        note=f"of {times['telens']:.0f} us {times['core']:.0f} are the core's when it runs alone, "
        f"{times['crossings']:.0f} of these tensors that cross to it and back over DLPack; "
        f"{times['empty PyLayer']:.0f} what a PyLayer takes that computes nothing",
    )


GROUP = Group(PADDLE_LINEAR, paddle_linear_rows)
