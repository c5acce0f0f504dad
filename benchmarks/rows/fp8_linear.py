"""A layer in FP8 and BF16, compared with torch."""

from programs import ratio
from report import Row, at_most

from rows.group import Group, require_cpu
from rows.simd import AVX2

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


LARGE_ON_AVX2 = "2048x1024x1024 on AVX2 over torch.nn.Linear FP32"
SMALL_ON_AVX2 = "128x256x256 on AVX2 over torch.nn.Linear FP32"
ON_AVX2 = [
    f"FP8 Linear, {LARGE_ON_AVX2}",
    f"BF16 Linear, {LARGE_ON_AVX2}",
    f"FP8 Linear, {SMALL_ON_AVX2}",
    f"BF16 Linear, {SMALL_ON_AVX2}",
]
# Restricts torch, oneDNN and MKL to AVX2, as on a laptop.
AVX2_ENVIRONMENT = AVX2.environment | {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


def avx2_linear_rows(programs):
    require_cpu(AVX2.flag)
    measured = programs.run("linear", environment=AVX2_ENVIRONMENT)
    peer = "torch.nn.Linear FP32"
    names = iter(ON_AVX2)
    for size in ("2048x1024x1024", "128x256x256"):
        samples = measured[size]
        for ours in ("telens.Linear FP8", "telens.Linear BF16"):
            yield Row(next(names), ratio(samples, ours, peer), "x", at_most(1.1), samples)


AVX2_GROUP = Group(ON_AVX2, avx2_linear_rows)
GROUP = Group(FP8_LINEAR, fp8_linear_rows)
