"""Skips these tests if Paddle is not installed."""

import importlib.util

import pytest

REASON = "paddlepaddle is not installed here; `make test-paddle` sets it up and runs these tests"
HAS_PADDLE = getattr(importlib.util.find_spec("paddle"), "origin", None) is not None


class _Skipped(pytest.Module):
    def collect(self):
        pytest.skip(REASON, allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    """Without Paddle no file of this folder is imported."""
    return None if HAS_PADDLE else _Skipped.from_parent(parent, path=module_path)
