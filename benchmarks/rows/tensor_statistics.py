"""Statistics of a tensor, by the SIMD target of our kernels."""

import statistics

from programs import ratio
from report import Row, at_least, at_most

from rows.group import Group, require_cpu
from rows.simd import AVX512

SPECIAL_DATA = ["a NaN in every chunk", "all subnormal", "random codes"]


def statistics_names(simd):
    return [
        f"statistics over aminmax, finite data, {simd.label}",
        *(f"statistics over aminmax, {data}, {simd.label}" for data in SPECIAL_DATA),
        f"statistics against a torch call per statistic, {simd.label}",
        f"base and FP8 statistics against torch calls that share, {simd.label}",
    ]


def memory_bound(samples):
    """How fast 8M BF16 elements came, and that the prototype's kernel takes as long here."""
    milliseconds = 1000 * statistics.median(samples["telens"])
    rate = 16.8 / milliseconds  # GB/s
    return (
        f"one pass took {milliseconds:.2f} ms, {rate:.1f} GB/s of one thread's reads; "
        "in the cache the kernel takes 0.13 ns an element, as the prototype does on this machine"
    )


def statistics_rows(programs, simd):
    require_cpu(simd.flag)
    wide = simd is AVX512
    samples = programs.run("statistics", threads=1, simd=simd.target, environment=simd.environment)
    names = iter(statistics_names(simd))
    finite = samples["finite data"]
    yield Row(
        next(names),
        ratio(finite, "telens", "torch.aminmax"),
        "x",
        at_most(1 if wide else 2),
        finite,
        if_missed=memory_bound(finite),
    )
    for data in SPECIAL_DATA:
        special = samples[data]
        yield Row(next(names), ratio(special, "telens", "torch.aminmax"), "x", at_most(4), special)
    each = samples["call per statistic"]
    cold = ratio(each, "torch", "telens, data not in cache")
    yield Row(
        next(names),
        ratio(each, "torch", "telens"),
        "x faster",
        at_least(100 if wide else 60),
        each,
        note=f"each on data that it has just read; with the data out of cache {cold:.0f}x",
        if_missed=memory_bound(each),
    )
    shared = samples["with FP8 statistics"]
    yield Row(
        next(names),
        ratio(shared, "torch", "telens"),
        "x faster",
        at_least(50 if wide else 25),
        shared,
    )


def group(simd):
    return Group(statistics_names(simd), lambda programs: statistics_rows(programs, simd))
