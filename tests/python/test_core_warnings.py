"""Warnings of the compiled part: one plain line, on one rank."""

import pytest
import torch

import telens.pytorch as te

LINE = "telens: window_size (-1, 0) is a causal mask's; with another it is taken as (-1, -1)\n"


@pytest.fixture
def attention():
    torch.set_warn_always(True)  # whatever this process has warned of before
    x = torch.ones(4, 1, 2, 16)
    module = te.DotProductAttention(2, 16, attn_mask_type="no_mask", window_size=(-1, 0))
    yield lambda: module(x, x, x)
    torch.set_warn_always(False)


@pytest.mark.parametrize(("rank", "shown"), [(None, LINE), ("0", LINE), ("1", "")])
def test_a_warning_is_one_plain_line_of_the_first_rank(attention, rank, shown, capfd, monkeypatch):
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    attention()
    assert capfd.readouterr().err == shown


def test_a_warning_is_shown_once_a_process(attention, capfd):
    attention()
    torch.set_warn_always(False)
    capfd.readouterr()
    attention()
    assert capfd.readouterr().err == ""
