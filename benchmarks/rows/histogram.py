"""Histograms of a tensor."""

from statistics import median

from programs import ratio
from report import Row, at_most

from rows.group import Group

HISTOGRAM = [
    "exponent histogram over torch.aminmax, one thread",
    "histogram over all codes over torch.aminmax, normal data, one thread",
    "histogram over all codes over torch.aminmax, worst data, one thread",
]


def histogram_rows(programs):
    samples = programs.run("histogram", threads=1)
    normal = samples["normal"]
    yield Row(HISTOGRAM[0], ratio(normal, "exponents", "torch.aminmax"), "x", at_most(4), normal)
    yield Row(HISTOGRAM[1], ratio(normal, "codes", "torch.aminmax"), "x", at_most(4), normal)

    def of_codes(data):
        return ratio(samples[data], "codes", "torch.aminmax")

    worst = max(samples, key=of_codes)
    note = f"the slowest of {', '.join(samples)}: {worst}"
    slower = median(samples[worst]["codes"]) / median(normal["codes"])
    reason = (
        "where many elements share a value an addition to its counter waits until the one before "
        f"is stored: {worst} take {slower:.1f} times what normal data takes in the same loop"
    )
    yield Row(HISTOGRAM[2], of_codes(worst), "x", at_most(7), samples[worst], note, reason)


GROUP = Group(HISTOGRAM, histogram_rows)
