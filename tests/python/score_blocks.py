"""Sets the block size of attention, so that small attentions also run in blocks."""

from contextlib import contextmanager

from telens import _C


@contextmanager
def in_blocks(of_block):
    """Attention on the CPU runs in blocks of at most this many scores, or of one query if it has
    more.
    """
    before = _C.set_score_blocks(-1, of_block)
    try:
        yield
    finally:
        _C.set_score_blocks(*before)
