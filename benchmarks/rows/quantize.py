"""Quantization, by the SIMD target of our kernels."""

from programs import ratio
from report import Row, at_least

from rows.group import Group, require_cpu
from rows.simd import AVX512


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


def group(simd):
    return Group([quantize_name(simd)], lambda programs: quantize_rows(programs, simd))
