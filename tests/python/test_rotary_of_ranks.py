"""apply_rotary_pos_emb on ranks that divide each sequence gives their part of the whole result."""

import pytest
import torch
from context_helpers import PACKED_PADDED, chunks_of, sums

import telens
import telens.pytorch as te
from telens.pytorch.attention.rope import apply_rotary_pos_emb

ANGLES = te.RotaryPositionEmbedding(8)(40)


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_rotates_by_its_own_positions(rank):
    of_rank = {"cp_size": 4, "cp_rank": rank}
    t = torch.randn(32, 2, 3, 12)
    own = chunks_of(rank, 4, 32)
    for layout, whole in (("sbhd", t), ("bshd", t.transpose(0, 1))):
        dim = layout.index("s")
        here = whole.index_select(dim, torch.tensor(own))
        expected = apply_rotary_pos_emb(whole, ANGLES, layout).index_select(dim, torch.tensor(own))
        assert torch.equal(apply_rotary_pos_emb(here, ANGLES, layout, **of_rank), expected)
    packed, bounds = torch.randn(sum(PACKED_PADDED), 3, 12), sums(PACKED_PADDED)
    own = [
        place
        for start, length in zip(bounds.tolist(), PACKED_PADDED, strict=False)
        for place in chunks_of(rank, 4, length, start)
    ]
    expected = apply_rotary_pos_emb(packed, ANGLES, "thd", cu_seqlens=bounds)[own]
    found = apply_rotary_pos_emb(packed[own], ANGLES, "thd", cu_seqlens=bounds, **of_rank)
    torch.testing.assert_close(found, expected)


def test_invalid_arguments_are_rejected():
    t = torch.zeros(22, 1, 1, 8)
    with pytest.raises(telens.ShapeError, match="freqs has 40 positions; 44 are needed"):
        apply_rotary_pos_emb(t, ANGLES, cp_size=2)
    with pytest.raises(telens.ShapeError, match="a sequence has 6 positions; 2 ranks divide"):
        apply_rotary_pos_emb(t[:3], ANGLES, cp_size=2)
    with pytest.raises(telens.UsageError, match="cp_rank is 2; expected one of 2 ranks"):
        apply_rotary_pos_emb(t[:4], ANGLES, cp_size=2, cp_rank=2)
    with pytest.raises(telens.UsageError, match="start_positions do not go with cp_size 2"):
        apply_rotary_pos_emb(t[:4], ANGLES, start_positions=torch.zeros(1).int(), cp_size=2)
