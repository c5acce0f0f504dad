"""The attention of TransformerLayer: dropped paths, decoders, packed sequences."""

import torch
from attention_cases import sums_of

import telens.pytorch as te


def test_a_path_is_dropped_for_whole_positions_and_only_in_training():
    torch.manual_seed(1)
    layer = te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, drop_path_rate=0.5, device="cpu"
    )
    x = torch.randn(400, 2, 32)
    whole = layer.eval()(x)
    assert torch.equal(whole, layer(x))
    dropped = layer.train()(x)
    # A position whose branches were both dropped equals the input, for all samples: in a quarter of
    # the cases.
    kept = (dropped == x).all(-1)
    assert torch.equal(kept[:, 0], kept[:, 1])
    assert 0.15 < kept[:, 0].float().mean() < 0.35


def test_a_path_that_is_always_dropped_leaves_the_input():
    layer = te.TransformerLayer(32, 64, 4, drop_path_rate=1.0, device="cpu")
    x = torch.randn(4, 2, 32)
    assert torch.equal(layer(x), x)


def test_a_kept_path_is_divided_by_its_probability():
    torch.manual_seed(5)
    made = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "parallel_attention_mlp": True}
    layer = te.TransformerLayer(32, 64, 4, drop_path_rate=0.75, device="cpu", **made)
    x = torch.randn(64, 2, 32)
    added = layer.eval()(x) - x
    dropped = layer.train()(x) - x
    kept = (dropped != 0).any(-1)[:, 0]
    assert 0 < kept.sum() < 64
    torch.testing.assert_close(dropped[kept], added[kept] * 4, rtol=1e-4, atol=1e-5)


def test_a_decoder_takes_windows_biases_and_packed_sequences():
    torch.manual_seed(2)
    layer = te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, layer_type="decoder",
        window_size=(2, 0), enc_dec_window_size=(1, 1), device="cpu",
    )  # fmt: skip
    x, memory = torch.randn(8, 2, 32), torch.randn(8, 2, 32)
    plain = layer(x, encoder_output=memory)
    given = layer(x, encoder_output=memory, window_size=(2, 0), enc_dec_window_size=(1, 1))
    assert torch.equal(plain, given)
    assert not torch.equal(plain, layer(x, encoder_output=memory, window_size=(7, 0)))
    assert not torch.equal(plain, layer(x, encoder_output=memory, enc_dec_window_size=(3, 3)))
    packed_layer = te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, attn_input_format="thd",
        self_attn_mask_type="padding_causal", window_size=(2, 0), device="cpu",
    )  # fmt: skip
    one = te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, window_size=(2, 0), device="cpu"
    )
    one.load_state_dict(packed_layer.state_dict())
    tokens = torch.randn(7, 32)
    sums = sums_of([3, 4])
    out = packed_layer(tokens, cu_seqlens_q=sums, cu_seqlens_kv=sums)
    parts = [one(part.unsqueeze(1)).squeeze(1) for part in tokens.split([3, 4])]
    torch.testing.assert_close(out, torch.cat(parts), rtol=1e-5, atol=1e-5)


def test_decoder_self_attention_uses_decoder_lengths():
    torch.manual_seed(6)
    layer = te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, layer_type="decoder",
        attn_input_format="thd", self_attn_mask_type="padding_causal",
        enc_dec_attn_mask_type="padding", device="cpu",
    )  # fmt: skip
    x, memory = torch.randn(7, 32), torch.randn(9, 32)
    out = layer(
        x, encoder_output=memory, cu_seqlens_q=sums_of([3, 4]), cu_seqlens_kv=sums_of([5, 4]),
        max_seqlen_q=4, max_seqlen_kv=5,
    )  # fmt: skip
    parts = [
        layer(
            own, encoder_output=encoded, cu_seqlens_q=sums_of([len(own)]),
            cu_seqlens_kv=sums_of([len(encoded)]),
        )
        for own, encoded in zip(x.split([3, 4]), memory.split([5, 4]), strict=True)
    ]  # fmt: skip
    torch.testing.assert_close(out, torch.cat(parts), rtol=1e-5, atol=1e-5)
    seen = {}
    layer.self_attention.core_attention.register_forward_pre_hook(
        lambda module, args, kwargs: seen.update(kwargs), with_kwargs=True
    )
    layer(x, encoder_output=memory, cu_seqlens_q=sums_of([3, 4]), cu_seqlens_kv=sums_of([5, 4]))
    assert torch.equal(seen["cu_seqlens_kv"], sums_of([3, 4]))


def test_cross_attention_gets_the_rotary_embedding_too():
    torch.manual_seed(3)
    layer = te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, layer_type="decoder", device="cpu"
    )
    x, memory = torch.randn(8, 2, 32), torch.randn(8, 2, 32)
    angles = te.RotaryPositionEmbedding(8)(8)
    seen = {}
    layer.inter_attention.register_forward_pre_hook(
        lambda module, args, kwargs: seen.update(kwargs), with_kwargs=True
    )
    layer(x, encoder_output=memory, rotary_pos_emb=angles)
    given = seen["rotary_pos_emb"]
    assert torch.equal(given if isinstance(given, torch.Tensor) else given[0], angles)
