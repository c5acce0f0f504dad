"""Attention in blocks of scores, however small it is."""

from contextlib import contextmanager

from telens import _C


@contextmanager
def in_blocks(of_block):
    """Every attention on the CPU runs in blocks of at most as many scores, or of one query."""
    before = _C.set_score_blocks(-1, of_block)
    try:
        yield
    finally:
        _C.set_score_blocks(*before)
