"""MultiheadAttention and Transformer layers whose sequences are divided among ranks, and the
batches for them.
"""

import functools

import pytest
import torch
import torch.distributed as dist
from context_helpers import (
    PACKED_LENGTHS,
    PACKED_PADDED,
    SEQ,
    chunks_of,
    close,
    places,
    sums,
    two_levels,
)  # fmt: skip
from distributed_workers import run_ranks, written_to_stderr
from parallel_helpers import region, sum_over_ranks

import telens
import telens.pytorch as te
from telens.pytorch.attention.dot_product_attention.context_parallel import (
    generate_positional_ids_for_cp,
    get_batch_on_this_cp_rank,
    pad_thd_sequences_for_cp,
)

HIDDEN, FFN, HEADS, BATCH = 64, 128, 4, 2


def inputs_of(layout: str) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """A whole input, the gradient of the output, and the arguments of the forward."""
    generator = torch.Generator().manual_seed(1)
    sizes = {"sbhd": (SEQ, BATCH), "bshd": (BATCH, SEQ), "thd": (sum(PACKED_PADDED),)}[layout]
    drawn = [torch.randn(*sizes, HIDDEN, generator=generator) for _ in range(2)]
    call = {"rotary_pos_emb": te.RotaryPositionEmbedding(HIDDEN // HEADS)(SEQ)}
    if layout == "thd":
        call |= {"cu_seqlens_q": sums(PACKED_LENGTHS), "cu_seqlens_q_padded": sums(PACKED_PADDED)}
    return *drawn, call


def compare(whole, own, layout: str, size: int, what: object, precision: str = "FP32") -> None:
    """The gradients of weights are summed over the tokens of all ranks."""
    own.load_state_dict(whole.state_dict())
    x, gradient, call = inputs_of(layout)
    dim, here = places(layout, dist.get_rank(), size)
    own_x = x.index_select(dim, here).requires_grad_()
    x.requires_grad_()
    with region(precision, dist.group.WORLD):
        expected, found = whole(x, **call), own(own_x, **call)
    expected.backward(gradient)
    found.backward(gradient.index_select(dim, here))
    close(found, expected.index_select(dim, here), (what, "output"))
    close(own_x.grad, x.grad.index_select(dim, here), (what, "dgrad"))
    for name, parameter in own.named_parameters():
        total = sum_over_ranks(parameter.grad, dist.group.WORLD)
        close(total, whole.get_parameter(name).grad, (what, name))


def attention(comm: str, layout: str, groups: int, group: object, size: int) -> None:
    torch.manual_seed(1)
    mask = "padding_causal" if layout == "thd" else "causal"
    made = {"attention_dropout": 0.0, "num_gqa_groups": groups, "input_layernorm": True}
    made |= {"qkv_format": layout, "attn_mask_type": mask, "device": "cpu"}
    whole, own = (te.MultiheadAttention(HIDDEN, HEADS, **made) for _ in range(2))
    own.set_context_parallel_group(group, None, None, comm)
    compare(whole, own, layout, size, (comm, layout, groups))


def transformer(comm: str, size: int, group: object = None) -> None:
    torch.manual_seed(1)
    made = {"attention_dropout": 0.0, "hidden_dropout": 0.0, "fuse_qkv_params": True}
    made |= {"attn_input_format": "bshd", "device": "cpu"}
    whole, own = (te.TransformerLayer(HIDDEN, FFN, HEADS, **made) for _ in range(2))
    own.set_context_parallel_group(group or dist.group.WORLD, list(range(size)), None, comm)
    assert own.self_attention.core_attention.cp_comm_type == comm
    compare(whole, own, "bshd", size, ("TransformerLayer", comm))


def decoder(comm: str, padded: bool) -> None:
    """Cross attention sees 48 positions of the encoder, whose chunks are longer than its own."""
    torch.manual_seed(1)
    made = {"attention_dropout": 0.0, "hidden_dropout": 0.0, "layer_type": "decoder"}
    made |= {"attn_input_format": "bshd", "device": "cpu"}
    made |= {"enc_dec_attn_mask_type": "padding" if padded else "no_mask"}
    made |= {"self_attn_mask_type": "padding_causal" if padded else "causal"}
    lengths = {"cu_seqlens_q": sums([30, 17]), "cu_seqlens_kv": sums([41, 5])} if padded else {}
    whole, own = (te.TransformerLayer(HIDDEN, FFN, HEADS, **made) for _ in range(2))
    own.load_state_dict(whole.state_dict())
    own.set_context_parallel_group(dist.group.WORLD, None, None, comm)
    generator = torch.Generator().manual_seed(1)
    x, gradient, seen = (
        torch.randn(BATCH, length, HIDDEN, generator=generator) for length in (SEQ, SEQ, 48)
    )
    here, there = (torch.tensor(chunks_of(dist.get_rank(), 2, length)) for length in (SEQ, 48))
    angles = te.RotaryPositionEmbedding(HIDDEN // HEADS)(48)
    cut = (x[:, here], seen[:, there], gradient[:, here])
    found = []
    for layer, parts in ((whole, (x, seen, gradient)), (own, cut)):
        hidden, encoded = (part.clone().requires_grad_() for part in parts[:2])
        out = layer(hidden, encoder_output=encoded, rotary_pos_emb=angles, **lengths)
        out.backward(parts[2])
        found.append((out.detach(), hidden.grad, encoded.grad))
    for name, at, right, actual in zip(
        ("output", "dgrad", "the encoder's"), (here, here, there), *found, strict=True
    ):
        close(actual, right[:, at], ("decoder", comm, padded, name))
    for name, parameter in own.named_parameters():
        total = sum_over_ranks(parameter.grad, dist.group.WORLD)
        close(total, whole.get_parameter(name).grad, ("decoder", comm, padded, name))


def short_angles(rank: int) -> None:
    layer = te.MultiheadAttention(HIDDEN, HEADS, attention_dropout=0.0, device="cpu")
    layer.set_context_parallel_group(dist.group.WORLD)
    angles = te.RotaryPositionEmbedding(HIDDEN // HEADS)(16)
    with pytest.raises(telens.ShapeError, match=r"has 16 positions; 2 .* of 16 have 32: give the"):
        layer(torch.zeros(16, 1, HIDDEN), rotary_pos_emb=angles)


def dropped(comm: str) -> tuple[torch.Tensor, torch.Tensor]:
    """With weights of 1 / 64 and values of 1, the result is the share that dropout keeps."""
    attention = te.DotProductAttention(
        HEADS, 16, attention_dropout=0.25, attn_mask_type="no_mask",
        cp_group=dist.group.WORLD, cp_comm_type=comm,
    )  # fmt: skip
    torch.manual_seed(dist.get_rank())
    zeros, value = torch.zeros(32, 8, HEADS, 16), torch.ones(32, 8, HEADS, 16, requires_grad=True)
    out = attention(zeros, zeros, value)
    out.sum().backward()
    return out.detach(), value.grad


def dropouts(rank: int) -> None:
    for comm in ("p2p", "all_gather", "a2a"):
        out, gradient = dropped(comm)
        # 32 * 8 * 4 means of 64 choices each: their deviation is 0.577 / 8 from 1, that of the
        # whole mean 0.577 / 256.
        assert out.mean().sub(1).abs() < 5 * 0.577 / 256, comm
        assert 0.05 < out.view(32, 8, HEADS, 16)[..., 0].std() < 0.1, comm
        # A dropped weight gives no gradient: both sums are those of the kept weights.
        left = sum_over_ranks(torch.stack([out.sum(), gradient.sum()]), dist.group.WORLD)
        torch.testing.assert_close(left[0], left[1], rtol=1e-5, atol=0)


def of_long_sequences(rank: int) -> None:
    """320 queries on each rank, more than one block, in FP64, against the whole attention."""
    generator = torch.Generator().manual_seed(2)
    whole = [torch.randn(640, 1, 2, 8, generator=generator).double() for _ in range(3)]
    gradient = torch.randn(640, 1, 16, generator=generator).double()
    here = torch.tensor(chunks_of(rank, 2, 640))
    for mask in ("causal", "no_mask", "padding_causal"):
        made = {"attn_mask_type": mask, "attention_dropout": 0.0}
        lengths = {"cu_seqlens_q": sums([600])} if "padding" in mask else {}
        found = []
        for part, more in ((slice(None), {}), (here, {"cp_group": dist.group.WORLD})):
            inputs = [x[part].clone().requires_grad_() for x in whole]
            out = te.DotProductAttention(2, 8, **made, **more)(*inputs, **lengths)
            out.backward(gradient[part])
            found.append([out.detach(), *(x.grad for x in inputs)])
        for expected, own in zip(*found, strict=True):
            torch.testing.assert_close(own, expected[here], rtol=1e-10, atol=1e-10, msg=mask)


def dropouts_gradients(rank: int) -> None:
    """Compares with differences of the loss of all ranks, along one direction of each tensor."""
    generator = torch.Generator().manual_seed(10 + rank)
    drawn = [torch.randn(320, 1, 2, 8, generator=generator).double() for _ in range(6)]
    inputs, directions = drawn[:3], drawn[3:]
    gradient = torch.randn(320, 1, 16, generator=generator).double()
    attention = te.DotProductAttention(2, 8, attention_dropout=0.3, cp_group=dist.group.WORLD)

    def attend(*moved: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(rank)  # the same choices in each call
        return attention(*moved).mul(gradient).sum()

    leaves = [x.clone().requires_grad_() for x in inputs]
    attend(*leaves).backward()
    step = 1e-5
    for i, direction in enumerate(directions):
        losses = []
        for sign in (1, -1):
            moved = [x + sign * step * direction if j == i else x for j, x in enumerate(inputs)]
            losses.append(attend(*moved))
        slope = (losses[0] - losses[1]) / (2 * step)
        total = torch.stack([slope, leaves[i].grad.mul(direction).sum()])
        dist.all_reduce(total)
        assert total[0].abs() > 1, i
        torch.testing.assert_close(total[1], total[0], rtol=1e-6, atol=1e-6)


def other_lengths_of_keys(rank: int) -> None:
    """Cross attention: 32 queries see 48 keys, which have their own padding."""
    generator = torch.Generator().manual_seed(4)
    whole = [torch.randn(n, BATCH, HEADS, 8, generator=generator) for n in (32, 48, 48)]
    places = [torch.tensor(chunks_of(rank, 2, len(x))) for x in whole]
    keys = {"cu_seqlens_q": sums([30, 17]), "cu_seqlens_kv": sums([41, 5])}
    made = {"attention_dropout": 0.0}
    for comm in ("p2p", "all_gather", "a2a"):
        own = {**made, "cp_group": dist.group.WORLD, "cp_comm_type": comm}
        for mask, lengths in (("no_mask", {}), ("padding", keys)):
            found = []
            for more, inputs in (
                (made, [x.clone() for x in whole]),
                (own, [x[at] for x, at in zip(whole, places, strict=True)]),
            ):
                inputs = [x.requires_grad_() for x in inputs]
                out = te.DotProductAttention(HEADS, 8, attn_mask_type=mask, **more)(
                    *inputs, **lengths
                )
                out.square().sum().backward()
                found.append([out.detach(), *(x.grad for x in inputs)])
            for i, (expected, mine) in enumerate(zip(*found, strict=True)):
                close(mine, expected[places[max(i - 1, 0)]], (comm, mask, i))
        parts = [x[at] for x, at in zip(whole, places, strict=True)]
        with pytest.raises(telens.UsageError, match="needs queries and keys of the same lengths"):
            te.DotProductAttention(HEADS, 8, attn_mask_type="causal", **own)(*parts)
        if comm != "p2p":
            with pytest.raises(telens.UsageError, match="queries and keys of the same lengths"):
                te.DotProductAttention(
                    HEADS, 8, attn_mask_type="no_mask", window_size=(4, 4), **own
                )(*parts)
        same = [parts[0]] * 3
        with pytest.raises(telens.UsageError, match="queries and keys of the same lengths"):
            te.DotProductAttention(HEADS, 8, attn_mask_type="padding_causal", **own)(*same, **keys)


def checkpoints_of_dropout(rank: int) -> None:
    """The ring nevertheless repeats dropout's choices, and says so once."""
    x = torch.ones(16, 1, HEADS, 16)
    for comm, times in (("all_gather", 0), ("a2a", 0), ("p2p", 1), ("p2p", 0)):
        attention = te.DotProductAttention(
            HEADS, 16, attention_dropout=0.5, cp_group=dist.group.WORLD, cp_comm_type=comm
        )
        call = functools.partial(attention, x, x, x, checkpoint_core_attention=True)
        text = written_to_stderr(call)
        lines = text.splitlines()
        message = "telens: checkpoint_core_attention changes nothing under"
        assert [line.startswith(message) for line in lines] == [True] * times, (comm, text)


def nothing_is_left_of_dropout_1(rank: int) -> None:
    made = {"attention_dropout": 1.0, "attn_mask_type": "no_mask", "cp_group": dist.group.WORLD}
    x = torch.ones(32, 1, HEADS, 16, requires_grad=True)
    out = te.DotProductAttention(HEADS, 16, **made)(x, x, x)
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(x.grad, torch.zeros_like(x))


def second_derivatives(rank: int) -> None:
    """Gradients are right or there is an error; they are never omitted."""
    for comm in ("p2p", "all_gather", "a2a"):
        made = {"attention_dropout": 0.0, "attn_mask_type": "no_mask", "cp_comm_type": comm}
        attention = te.DotProductAttention(HEADS, 16, cp_group=dist.group.WORLD, **made)
        x = torch.ones(32, 1, HEADS, 16, requires_grad=True)
        out = attention(x, x, x).sum()
        try:
            [gradient] = torch.autograd.grad(out, x, create_graph=True)
        except RuntimeError:
            continue
        assert gradient.requires_grad, comm


def what_does_not_fit(rank: int) -> None:
    def attend(layout: str, mask: str, batch: tuple[int, ...], **arguments: object) -> None:
        x = torch.zeros(*batch, HEADS, 16)
        attention = te.DotProductAttention(
            HEADS, 16, attn_mask_type=mask, qkv_format=layout, cp_group=dist.group.WORLD
        )
        attention(x, x, x, **arguments)

    lengths = {"cu_seqlens_q": sums([5, 3])}
    mask = torch.zeros(2, 1, 1, 16, dtype=torch.bool)
    with pytest.raises(telens.UsageError, match="an attention_mask does not go with context"):
        attend("sbhd", "padding", (16, 2), attention_mask=mask, **lengths)
    with pytest.raises(telens.ShapeError, match="cu_seqlens_q has 3 numbers; expected 2, of a"):
        attend("sbhd", "padding", (16, 1), **lengths)
    padded = {"cu_seqlens_q": sums([13]), "cu_seqlens_q_padded": sums([8])}
    with pytest.raises(telens.ShapeError, match="sequence 0 has 13 tokens and 8 with its padding"):
        attend("thd", "padding", (4,), **padded)


def two_ranks(rank: int) -> None:
    nothing_is_left_of_dropout_1(rank)
    second_derivatives(rank)
    what_does_not_fit(rank)
    for comm in ("p2p", "all_gather", "a2a"):
        attention(comm, "sbhd", 2, dist.group.WORLD, 2)
        attention(comm, "thd", HEADS, dist.group.WORLD, 2)
        transformer(comm, 2)
        decoder(comm, padded=comm != "p2p")
    decoder("p2p", padded=True)
    short_angles(rank)
    dropouts(rank)
    checkpoints_of_dropout(rank)
    dropouts_gradients(rank)
    of_long_sequences(rank)
    other_lengths_of_keys(rank)


def test_layers_shared_by_2_ranks_are_the_whole_ones():
    run_ranks(two_ranks)


def four_ranks(rank: int) -> None:
    levels = two_levels(rank)
    for layout, groups in (("sbhd", 2), ("thd", HEADS)):
        attention("a2a+p2p", layout, groups, levels, 4)
    transformer("a2a+p2p", 4, levels)


def test_layers_shared_by_4_ranks_in_two_levels_are_the_whole_ones():
    run_ranks(four_ranks, world_size=4)


def test_packed_batch_is_divided_like_transformer_engine():
    """Lengths 6, 8, 7, 15 become 8, 8, 8, 16 for 4 ranks, with the documented positions."""
    cu_seqlens = torch.tensor([0, 6, 14, 21, 36], dtype=torch.int32)
    ids, labels = torch.arange(100, 136), torch.arange(200, 236)
    padded, marks, padded_sums = pad_thd_sequences_for_cp(ids[None], labels[None], cu_seqlens, 8)
    assert padded_sums.tolist() == [0, 8, 16, 24, 40]
    assert padded_sums.dtype == torch.int32
    assert padded[:8].tolist() == [100, 101, 102, 103, 104, 105, 0, 0]
    assert marks[21:26].tolist() == [219, 220, -100, 221, 222]
    positions = generate_positional_ids_for_cp(cu_seqlens, 8)
    assert positions[22:26].tolist() == [6, 7, 0, 1]
    parts = [
        get_batch_on_this_cp_rank(padded_sums, padded, marks, positions, cp_rank=r, cp_size=4)
        for r in range(4)
    ]
    assert parts[0][2].tolist() == [0, 7, 0, 7, 0, 7, 0, 1, 14, 15]
    assert parts[3][2].tolist() == [3, 4, 3, 4, 3, 4, 6, 7, 8, 9]
    together = torch.cat([each[0] for each in parts])
    assert together.sort().values.tolist() == padded.sort().values.tolist()
    row = get_batch_on_this_cp_rank(padded_sums, padded[None], None, None, cp_rank=1, cp_size=4)
    assert torch.equal(row[0][0], parts[1][0])
    assert row[1] is None


def test_equal_length_batches_are_divided_along_the_sequence():
    x = torch.arange(16).view(2, 8)
    for layout, tensor in (("bshd", x), ("sbhd", x.T)):
        own, _, positions = get_batch_on_this_cp_rank(
            None, tensor, None, torch.arange(8), None, layout, 0, 2
        )
        whole = own if layout == "bshd" else own.T
        assert whole.tolist() == [[0, 1, 6, 7], [8, 9, 14, 15]]
        assert positions.tolist() == [0, 1, 6, 7]


def test_sequence_without_tokens_gets_no_part():
    sums = torch.tensor([0, 0, 8, 8])
    own, _, _ = get_batch_on_this_cp_rank(sums, torch.arange(8), None, None, cp_rank=1, cp_size=2)
    assert own.tolist() == [2, 3, 4, 5]


def test_indivisible_sizes_are_rejected():
    odd = torch.tensor([0, 6])
    with pytest.raises(telens.ShapeError, match="has 6 tokens; 2 ranks divide multiples of 4: pad"):
        get_batch_on_this_cp_rank(odd, torch.arange(6), None, None, cp_rank=0, cp_size=2)
    with pytest.raises(telens.ShapeError, match="a sequence has 6 positions; 2 ranks divide"):
        get_batch_on_this_cp_rank(None, torch.arange(6), None, None, None, "sbhd", 0, 2)
    with pytest.raises(telens.ShapeError, match="cu_seqlens_padded has 8 tokens"):
        get_batch_on_this_cp_rank(
            torch.tensor([0, 8]), torch.arange(9), None, None, cp_rank=0, cp_size=2
        )
    with pytest.raises(telens.UsageError, match="did you mean 'thd'"):
        get_batch_on_this_cp_rank(odd, torch.arange(6), None, None, None, "thhd", 0, 2)
    with pytest.raises(telens.ShapeError, match="cu_seqlens has 6 tokens, input_ids 5"):
        pad_thd_sequences_for_cp(torch.arange(5), torch.arange(5), odd, 4)
    with pytest.raises(telens.UsageError, match="divisibility_factor is 0"):
        generate_positional_ids_for_cp(odd, 0)
