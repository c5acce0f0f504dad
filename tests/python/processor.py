"""What the processor that runs the tests supports."""

from pathlib import Path

import torch


def has_native_bf16() -> bool:
    """Whether torch's BF16 products use BF16 instructions, in which case ours do too."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    flags = Path("/proc/cpuinfo").read_text().split()
    return "avx512_bf16" in flags or "amx_bf16" in flags
