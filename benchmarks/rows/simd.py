"""The instructions that rows of one thread are measured with."""

from dataclasses import dataclass


@dataclass
class Simd:
    """`target`: Highway's name. torch is held to the same instructions by `environment`."""

    label: str
    target: str
    flag: str
    environment: dict[str, str]


AVX512 = Simd("AVX-512", "AVX3", "avx512bw", {"ATEN_CPU_CAPABILITY": "avx512"})
AVX2 = Simd("AVX2", "AVX2", "avx2", {"ATEN_CPU_CAPABILITY": "avx2"})
