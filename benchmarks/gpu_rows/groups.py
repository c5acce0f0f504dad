"""The groups of rows, the most telling first, each a module of this package; without torch."""

import importlib

# Seconds that each may take when `make gpu-check` runs it. What compiles comes last.
GROUPS = {
    "memory_bound": 60,
    "statistics": 60,
    "gemm": 60,
    "linear": 90,
    "session": 60,
    "host_time": 30,
    "block_formats": 40,
    "layer": 120,
}


def rows_of(group: str) -> list:
    return importlib.import_module(f"gpu_rows.{group}").ROWS
