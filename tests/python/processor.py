"""What the processor of the tests can do."""

from pathlib import Path

import torch


def has_native_bf16() -> bool:
    """Returns True if torch's BF16 products run on BF16 instructions, so that ours do too."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    flags = Path("/proc/cpuinfo").read_text().split()
    return "avx512_bf16" in flags or "amx_bf16" in flags
