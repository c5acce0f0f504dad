"""Rotary embeddings with neighboring pairs, packed sequences and start positions, against complex
products.
"""

import pytest
import torch

import telens
import telens.pytorch as te
from telens.pytorch.attention import apply_rotary_pos_emb

HEADS, SIZE = 3, 8


def drawn(*sizes, seed=1, dtype=torch.float64):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def rotated(tokens, places, channels, interleaved):
    """Tokens [n, heads, size] at places [n], as complex numbers times exp(i * place * period)."""
    periods = 10000.0 ** (-torch.arange(0, channels, 2, dtype=torch.float64) / channels)
    turn = torch.polar(torch.ones(1, dtype=torch.float64), places.double()[:, None] * periods)
    x = tokens[..., :channels]
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    turned = torch.complex(first, second) * turn[:, None]
    parts = (turned.real, turned.imag)
    joined = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat([joined, tokens[..., channels:]], -1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("channels", [SIZE, 4])
@pytest.mark.parametrize("tensor_format", ["sbhd", "bshd"])
@pytest.mark.parametrize("starts", [None, [0, 3]])
def test_channels_are_rotated_in_pairs(interleaved, channels, tensor_format, starts):
    angles = te.RotaryPositionEmbedding(channels, interleaved=interleaved)(9)
    x = drawn(2, 5, HEADS, SIZE)
    given = (x.transpose(0, 1) if tensor_format == "sbhd" else x).clone().requires_grad_()
    shift = None if starts is None else torch.tensor(starts)
    out = apply_rotary_pos_emb(given, angles, tensor_format, shift, interleaved)
    out = out.transpose(0, 1) if tensor_format == "sbhd" else out
    for sample, first in enumerate(starts or [0, 0]):
        places = torch.arange(5) + first
        expected = rotated(x[sample], places, channels, interleaved)
        torch.testing.assert_close(out[sample], expected, rtol=0, atol=1e-6)  # FP32 angles
    out.square().sum().backward()
    # A rotation keeps lengths, and the gradient of x^2.
    torch.testing.assert_close(given.grad, 2 * given.detach())


@pytest.mark.parametrize("interleaved", [False, True])
def test_packed_tokens_have_the_angles_of_their_place(interleaved):
    angles = te.RotaryPositionEmbedding(SIZE, interleaved=interleaved)(5)
    x = drawn(9, HEADS, SIZE)
    sums = torch.tensor([0, 3, 3, 4, 9], dtype=torch.int32)
    out = apply_rotary_pos_emb(x, angles, "thd", interleaved=interleaved, cu_seqlens=sums)
    places = torch.tensor([0, 1, 2, 0, 0, 1, 2, 3, 4])
    torch.testing.assert_close(out, rotated(x, places, SIZE, interleaved), rtol=0, atol=1e-6)
    assert apply_rotary_pos_emb(x[:0], angles, "thd", cu_seqlens=sums[:1]).shape == (0, HEADS, SIZE)


def test_assigned_frequencies_change_the_angles():
    angles = te.RotaryPositionEmbedding(SIZE)(6)
    for interleaved in (False, True):
        rotary = te.RotaryPositionEmbedding(SIZE, interleaved=interleaved)
        original = rotary(6)
        assert torch.equal(rotary.inv_freq, angles[1, 0, 0, : SIZE // 2])
        rotary.inv_freq = torch.nn.Buffer(rotary.inv_freq / 8)
        assert torch.equal(rotary(6), original / 8)
        rotary.bfloat16()  # BF16 angles would be wrong by 1 at position 256
        assert torch.equal(rotary(6), original / 8)
        assert not rotary.state_dict()


def test_frequencies_in_a_state_dict_are_loaded():
    model = torch.nn.ModuleDict({"rotary": te.RotaryPositionEmbedding(SIZE)})
    original = model["rotary"](6)
    model.load_state_dict({"rotary.inv_freq": model["rotary"].inv_freq * 2})
    assert torch.equal(model["rotary"](6), original * 2)
    model.load_state_dict({})
    assert torch.equal(model["rotary"](6), original * 2)


def test_frequencies_of_another_size_are_rejected():
    rotary = te.RotaryPositionEmbedding(SIZE)
    for wrong in (torch.ones(SIZE), 1.0):
        with pytest.raises(telens.UsageError, match=rf"inv_freq must be a tensor \[{SIZE // 2}\]"):
            rotary.inv_freq = wrong


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensor_format": "hbsd"}, "tensor_format must be one of sbhd, bshd, thd"),
        ({"tensor_format": "thd"}, "thd needs cu_seqlens"),
        (
            {"cu_seqlens": torch.tensor([0, 5])},
            "cu_seqlens is only supported for tensor_format thd",
        ),
        ({"start_positions": torch.tensor([1])}, r"start_positions must be integers \[2\]"),
        ({"start_positions": torch.tensor([0, 4])}, "the last token is at 8"),
        ({"start_positions": torch.tensor([0, -1])}, "start_positions must be 0 or more, not -1"),
        ({"freqs": torch.zeros(4, 1, 1, SIZE)}, "with at least 5 positions"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, message):
    fitting = {"t": drawn(5, 2, HEADS, SIZE), "freqs": te.RotaryPositionEmbedding(SIZE)(8)}
    with pytest.raises((telens.UsageError, telens.ShapeError), match=message):
        apply_rotary_pos_emb(**(fitting | arguments))


LENGTHS = [3, 5, 1]


def layer_and_angles(interleaved, qkv_format):
    torch.manual_seed(5)
    layer = te.TransformerLayer(
        HEADS * SIZE, 48, HEADS, hidden_dropout=0, attention_dropout=0, device="cpu",
        attn_input_format=qkv_format, rotary_pos_interleaved=interleaved,
        self_attn_mask_type="padding_causal" if qkv_format == "thd" else "causal",
    )  # fmt: skip
    return layer, te.RotaryPositionEmbedding(SIZE, interleaved=interleaved)(5)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("gap", [0, 2])
def test_a_layer_of_packed_sequences_rotates_each_from_its_start(interleaved, gap):
    packed, angles = layer_and_angles(interleaved, "thd")
    alone, _ = layer_and_angles(interleaved, "sbhd")
    sequences = [drawn(n, HEADS * SIZE, seed=n, dtype=torch.float32) for n in LENGTHS]
    filling = torch.full((gap, HEADS * SIZE), 7.0)
    x = torch.cat([part for each in sequences for part in (each, filling)])
    sums = torch.tensor([0, *LENGTHS], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    arguments = {"cu_seqlens_q": sums, "cu_seqlens_kv": sums}
    if gap:
        padded = sums + gap * torch.arange(4, dtype=torch.int32)
        arguments |= {"cu_seqlens_q_padded": padded, "cu_seqlens_kv_padded": padded}
    out = packed(x, rotary_pos_emb=angles, **arguments)
    for i, sequence in enumerate(sequences):
        expected = alone(sequence[:, None], rotary_pos_emb=angles)[:, 0]
        first = int(sums[i]) + i * gap
        torch.testing.assert_close(out[first : first + LENGTHS[i]], expected)


def test_interleaved_pairs_are_halves_of_permuted_heads():
    neighbors, angles = layer_and_angles(True, "sbhd")
    halves, of_halves = layer_and_angles(False, "sbhd")
    order = torch.cat([torch.arange(0, SIZE, 2), torch.arange(1, SIZE, 2)])
    rows = (torch.arange(HEADS)[:, None] * SIZE + order).flatten()
    with torch.no_grad():
        for name in ("query", "key"):
            for kind in ("weight", "bias"):
                parameter = getattr(halves.self_attention.layernorm_qkv, f"{name}_{kind}")
                parameter.copy_(parameter[rows])
    x = drawn(5, 2, HEADS * SIZE, dtype=torch.float32)
    torch.testing.assert_close(
        neighbors(x, rotary_pos_emb=angles), halves(x, rotary_pos_emb=of_halves)
    )
    assert neighbors.rotary_pos_interleaved
    assert not torch.equal(neighbors(x, rotary_pos_emb=angles), neighbors(x))


def test_packed_sequences_longer_than_the_angles_are_rejected():
    packed, angles = layer_and_angles(False, "thd")
    x = torch.zeros(6, HEADS * SIZE)
    sums = torch.tensor([0, 6], dtype=torch.int32)
    with pytest.raises(telens.ShapeError, match="5 positions; the longest packed sequence has 6"):
        packed(x, rotary_pos_emb=angles, cu_seqlens_q=sums, cu_seqlens_kv=sums)
