"""Every row: which program measures it, how its value follows from the samples, its target.

A group is a function that yields rows; `names` are those that go under not_run where it cannot run.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from programs import CannotRun, Programs, ratio
from report import Row, at_least, at_most, cpu_flags


@dataclass
class Group:
    names: list[str]
    rows: Callable[[Programs], Iterator[Row]]


def require_cpu(*flags):
    missing = [flag for flag in flags if flag not in cpu_flags()]
    if missing:
        raise CannotRun(f"this processor has no {', '.join(missing)}")


# ---- statistics and quantize, by the SIMD target of our kernels


@dataclass
class Simd:
    """`target`: Highway's name. torch is held to the same instructions by `environment`."""

    label: str
    target: str
    flag: str
    environment: dict[str, str]


AVX512 = Simd("AVX-512", "AVX3", "avx512bw", {"ATEN_CPU_CAPABILITY": "avx512"})
AVX2 = Simd("AVX2", "AVX2", "avx2", {"ATEN_CPU_CAPABILITY": "avx2"})

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
    yield Row(HISTOGRAM[2], of_codes(worst), "x", at_most(7), samples[worst], note)


def quantize_rows(programs, simd):
    require_cpu(simd.flag)
    samples = programs.run("quantize", threads=1, simd=simd.target)["quantize"]
    yield Row(
        quantize_name(simd),
        ratio(samples, "memcpy", "telens"),
        "of memcpy's rate",
        at_least(0.8 if simd is AVX512 else 0.5),
        samples,
    )


def quantize_name(simd):
    return f"quantize BF16 to E4M3 with amax, {simd.label}"


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


# ---- layers

UNTOUCHED = [
    "untouched layer beside a session, instructions",
    "idle look-up of a layer, 100 sections for 1,000 layers",
    "untouched layer beside a session, time",
]
LOOKUPS = 2000  # that bench_untouched_layer counts: 1,000 layers in two iterations


def percent_more(counts, with_what="session"):
    return 100 * (counts[with_what] / counts["no session"] - 1)


def untouched_rows(programs):
    counts = programs.instructions("untouched_layer")
    # How long malloc takes depends on what the heap went through before, and on whether there is a
    # second thread: the C library is left out of the row and stands in its note.
    ours = {
        name: sum(count for path, count in each.items() if "libc.so" not in path)
        for name, each in counts.items()
    }
    whole = {name: each.total() for name, each in counts.items()}
    yield Row(
        UNTOUCHED[0],
        percent_more(ours),
        "% more",
        at_most(0.1),
        {name: [count] for name, count in ours.items() if not name.startswith("look-up")},
        "without the C library, whose malloc depends on the heap's history and on whether there is "
        f"a second thread; with it {percent_more(whole):+.3f} %, and "
        f"{percent_more(whole, 'no session, idle thread'):+.3f} % without a session beside a "
        "sleeping thread",
    )
    idle, none = (ours[f"look-up, {of}"] / LOOKUPS for of in ("100 sections wait", "no session"))
    yield Row(
        UNTOUCHED[1],
        idle,
        "instructions",
        at_most(20),
        {"100 sections wait": [idle], "no session": [none]},
        "whether the features of any section are due: a loop over the layers, its own instructions "
        f"included; {none:.4g} without a session",
    )
    samples = programs.run("untouched_layer", threads=1)["untouched layer"]
    yield Row(UNTOUCHED[2], ratio(samples, "session", "no session"), "x", None, samples)


PYTHON_LINEAR = ["BF16 Linear from Python over torch.nn.Linear, tiny"]


def python_linear_rows(programs):
    lines = programs.run_python("linear_from_python").splitlines()
    samples = {
        name: [float(each) for each in line.split()]
        for name, line in zip(["telens", "torch"], lines, strict=True)
    }
    yield Row(PYTHON_LINEAR[0], ratio(samples, "telens", "torch"), "x", at_most(1.1), samples)


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


FP8_LINEAR = [
    "FP8 Linear over torch.nn.Linear BF16, 2048x1024x1024",
    "the same with all statistics",
    "FP8 Linear over torch.nn.Linear BF16, 128x256x256",
]


def fp8_linear_rows(programs):
    require_cpu("avx512_bf16")
    samples = programs.run("linear")
    large, small = samples["2048x1024x1024"], samples["128x256x256"]
    plain, fp8 = "torch.nn.Linear BF16", "telens.Linear FP8"
    yield Row(
        FP8_LINEAR[0],
        ratio(large, fp8, plain),
        "x",
        at_most(1.15),
        large,
        if_missed="timed one by one where AMX does a product in 2.6 ms: casting 5M elements takes "
        "0.7 ms, decoding 10M 0.9 ms, and a product of operands that another core has just written "
        "0.3 to 0.4 ms more than one of operands at rest",
    )
    yield Row(
        FP8_LINEAR[1],
        ratio(large, f"{fp8} with all statistics", plain),
        "x",
        at_most(1.20),
        large,
        if_missed="one pass over 10M elements (20 MB at about 8 GB/s a thread) and the errors of "
        "5M casts take 1.5 to 2.5 ms, where AMX does the step's three products in 11 ms",
    )
    yield Row(
        FP8_LINEAR[2],
        ratio(small, fp8, plain),
        "x",
        at_most(1.5),
        small,
        if_missed="by callgrind (AVX2) decoding takes 450, casting 340 and transposing 170 "
        "thousand instructions beside products that AMX does in 0.13 ms; everything else of the "
        "calls takes fewer than 300 thousand",
    )


# ---- whole runs

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


WITH_BUDGET = "LogTensorStats with a budget of 3%"
DELAYED_SCALING = [
    "LogTensorStats",
    WITH_BUDGET,
    "LogFp8TensorStats",
    "LogNvfp4TensorStats",
    "FakeQuant",
    "PerTensorScaling",
    "DisableFP8GEMM",
    "DisableFP8Layer",
    "DumpTensors",
    "PrecisionLedger",
    "ValueHistogram",
    "ValueHistogram of codes",
    "GemmError",
    "ScaleHealth",
    "Trigger",
    "RankAgreement",
    "CollectiveCheck",
    "Diagnosis",
]
FEATURES = {"delayed": DELAYED_SCALING, "mxfp8": ["BlockTelemetry"]}

PRODUCTION = "production.yaml"  # its statistics have a budget of 2%, its alarm has none
PRODUCTION_ROW = f"sample's training step under delayed with configs/{PRODUCTION}"
FLIGHT_RECORDER = "flight_recorder.yaml"
FLIGHT_RECORDER_ROWS = [
    f"sample's training step under delayed with configs/{FLIGHT_RECORDER}",
    f"the same without its budget, freq 1: {FLIGHT_RECORDER}",
]


def feature_row_name(recipe, feature):
    return f"sample's training step under {recipe}, freq 1: {feature}"


WHY_OVER_BUDGET = "the budget holds over a run, and each round begins with what it has yet to learn"
WHY_EVERY_ITERATION = (
    "GemmError computes samples of three products of each layer in FP64 and the casts are tried "
    "under two other recipes, in a model whose own products take microseconds"
)


def feature_rows(programs):
    """What each feature costs; there is no target but for the statistics (above) and budgets."""
    rounds = max(1, programs.rounds // 4)
    samples = programs.run("feature_overhead", rounds=rounds)
    for recipe, features in FEATURES.items():
        for feature in features:
            both = samples[f"{recipe} {feature}"]
            name = feature_row_name(recipe, feature)
            target = at_most(1.03) if feature == WITH_BUDGET else None
            yield Row(name, ratio(both, feature, "no session"), "x", target, both)
    both = samples[f"delayed {PRODUCTION}"]
    yield Row(PRODUCTION_ROW, ratio(both, PRODUCTION, "no session"), "x", None, both)
    for name, contender, target, reason in (
        (FLIGHT_RECORDER_ROWS[0], FLIGHT_RECORDER, 1.03, WHY_OVER_BUDGET),
        (FLIGHT_RECORDER_ROWS[1], f"{FLIGHT_RECORDER} without budget", 1.10, WHY_EVERY_ITERATION),
    ):
        both = samples[f"delayed {contender}"]
        value = ratio(both, contender, "no session")
        yield Row(name, value, "x", at_most(target), both, if_missed=reason)


PEER_STATISTICS = {
    "4M FP32": "log_tensor_stats of 4M FP32 elements against nvdlfw-inspect",
    "4M BF16": "log_tensor_stats of 4M BF16 elements against nvdlfw-inspect",
    "1,024 FP32": "log_tensor_stats of 1,024 FP32 elements against nvdlfw-inspect",
}


def why_no_fifty_times(samples):
    """A tensor is read once where the peer reads it six times; a call has six lines to log."""
    call = statistics.median(samples["telens"])
    return (
        f"a call and its step() take {1e6 * call:.0f} us; the peer reads the tensor once for each "
        "of six statistics, with torch's own vectorized and threaded kernels, so that one read of "
        "a tensor out of cache can be six times as fast, and more only where torch converts first "
        "(BF16). On 1,024 elements both write six lines of text and flush them, as the contract "
        "has it"
    )


def peer_statistics_rows(programs):
    if not importlib.util.find_spec("nvdlfw_inspect"):
        raise CannotRun("nvdlfw-inspect is not installed")
    lines = programs.run_python("log_tensor_stats").splitlines()
    samples = {row["row"]: row["samples"] for row in map(json.loads, lines)}
    for tensor, name in PEER_STATISTICS.items():
        both = samples[tensor]
        value = ratio(both, "nvdlfw-inspect", "telens")
        reason = why_no_fifty_times(both)
        yield Row(name, value, "x faster", at_least(50), both, if_missed=reason)


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


QUERY = ["telens stats of one layer out of 10^7 records"]


def query_rows(programs):
    command = programs.build / "bin" / "telens"
    seconds = []
    with tempfile.TemporaryDirectory(prefix="telens-bench-") as folder:
        subprocess.run([programs.path("recorder"), "--write", folder], check=True)
        for _ in range(3 if programs.quick else 10):
            start = time.perf_counter()
            subprocess.run(
                [command, "stats", folder, "--layer", "layers.7"], check=True, capture_output=True
            )
            seconds.append(time.perf_counter() - start)
    yield Row(QUERY[0], statistics.median(seconds), "s", at_most(1), {"telens": seconds})


DIAGNOSE = {  # records: row, seconds at the most
    100_000: ("telens diagnose of 100,000 records", 1),
    1_000_000: ("telens diagnose of 1,000,000 records", 10),
}
OF_FLIGHT_RECORDER = ["l2_norm", "numel", "mean", "std", "cur_amax", "nonfinite"]


def healthy_lines(records):
    """Lines for write_lines: what a flight recorder has of a training in which nothing happens."""
    layers = [f"layers.{block}.{part}" for block in range(10) for part in ("qkv", "proj", "fc1")]
    tensors = ["weight", "activation", "gradient", "output"]
    statistics_of_all = len(layers) * len(tensors) * len(OF_FLIGHT_RECORDER)
    for step in range(records // statistics_of_all + 1):
        wobble = 1 + 0.01 * (step * 2654435761 % 1000) / 1000
        for place, layer in enumerate(layers):
            for number, tensor in enumerate(tensors):
                size = (1 + 0.01 * place) * 10.0**-number
                size *= 1 + 1e-5 * step if tensor == "weight" else wobble
                values = (64 * size, 4096, 0.01 * size, size, 4 * size, 0)
                for statistic, value in zip(OF_FLIGHT_RECORDER, values, strict=True):
                    yield f"record\t{step}\t{layer}\t{tensor}\t-\t{statistic}\t{value}"


def diagnose_rows(programs):
    command = programs.build / "bin" / "telens"
    writer = programs.build / "tests" / "write_lines"
    if not writer.exists():
        raise CannotRun(f"{writer} is not built")
    for records, (name, seconds) in DIAGNOSE.items():
        with tempfile.TemporaryDirectory(prefix="telens-bench-") as folder:
            lines = "\n".join(healthy_lines(records))
            subprocess.run([writer, folder], input=lines, text=True, check=True)
            rounds = 1 if programs.quick else 5
            times = [timed([command, "diagnose", folder])[0] for _ in range(rounds)]
        yield Row(name, statistics.median(times), "s", at_most(seconds), {"telens": times})


RANKS = 1024
MANY_RANKS = [
    f"telens info of {RANKS:,} ranks",
    f"telens stats of one layer of {RANKS:,} ranks",
    f"memory of telens info of {RANKS:,} ranks",
]
WHY_SLOWER = (
    "an opening of a file that may come from anywhere checks its 40 objects, and HDF5, which does "
    "it on one core, is given them one by one"
)


def timed(command):
    """Seconds, and megabytes at the most, of a program."""
    start = time.perf_counter()
    child = os.posix_spawn(
        command[0],
        list(map(str, command)),
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, used = os.wait4(child, 0)
    seconds = time.perf_counter() - start
    if status != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with status {status}")
    return seconds, used.ru_maxrss / 1000


def many_ranks_rows(programs):
    """A run of 1,441 records a rank, beside a loop over its files with h5py."""
    command = programs.build / "bin" / "telens"
    writer = programs.build / "tests" / "write_run"
    if not writer.exists():
        raise CannotRun(f"{writer} is not built")
    info, stats, loop, megabytes = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="telens-bench-") as folder:
        ranks = 16 if programs.quick else RANKS
        subprocess.run([writer, folder, "run", "40", "0", str(ranks)], check=True)
        if not programs.quick:
            time.sleep(4)  # files that were changed just now are checked in each opening
        reader = [sys.executable, Path(__file__).with_name("read_with_h5py.py"), folder]
        for _ in range(1 if programs.quick else 5):
            seconds, peak = timed([command, "info", folder])
            info.append(seconds)
            megabytes.append(peak)
            stats.append(timed([command, "stats", folder, "--layer", "layers.2"])[0])
            loop.append(timed([*reader, "layers.2.fc1"])[0])
    samples = {"telens": info, "h5py, one layer": loop}
    median = statistics.median
    yield Row(MANY_RANKS[0], median(info), "s", at_most(2), samples, if_missed=WHY_SLOWER)
    samples = {"telens": stats, "h5py": loop}
    yield Row(MANY_RANKS[1], median(stats), "s", at_most(3), samples, if_missed=WHY_SLOWER)
    yield Row(MANY_RANKS[2], median(megabytes), "MB", at_most(1000), {"telens": megabytes})


CONFIG = ["load and resolve a config of 100 sections for 1,000 layers"]


def config_rows(programs):
    samples = programs.run("config")["load and resolve"]
    yield Row(CONFIG[0], statistics.median(samples["telens"]), "s", at_most(0.5), samples)


def groups():
    for simd in (AVX512, AVX2):
        yield Group(
            statistics_names(simd), lambda programs, simd=simd: statistics_rows(programs, simd)
        )
        yield Group(
            [quantize_name(simd)], lambda programs, simd=simd: quantize_rows(programs, simd)
        )
    yield Group(HISTOGRAM, histogram_rows)
    yield Group(WHAT_IF, what_if_rows)
    yield Group(UNTOUCHED, untouched_rows)
    yield Group(PYTHON_LINEAR, python_linear_rows)
    yield Group(PADDLE_LINEAR, paddle_linear_rows)
    yield Group(FP8_LINEAR, fp8_linear_rows)
    yield Group(SAMPLE, sample_rows)
    yield Group(
        [
            *(feature_row_name(recipe, each) for recipe in FEATURES for each in FEATURES[recipe]),
            PRODUCTION_ROW,
            *FLIGHT_RECORDER_ROWS,
        ],
        feature_rows,
    )
    yield Group(list(PEER_STATISTICS.values()), peer_statistics_rows)
    yield Group(RECORDER, recorder_rows)
    yield Group(QUERY, query_rows)
    yield Group([name for name, _ in DIAGNOSE.values()], diagnose_rows)
    yield Group(MANY_RANKS, many_ranks_rows)
    yield Group(CONFIG, config_rows)
