"""Generation with cached keys and values against full recomputation of every sequence."""

from collections import OrderedDict

import pytest
import torch

import telens
import telens.pytorch as te

HIDDEN, HEADS, GROUPS, LONGEST = 32, 4, 2, 12


class Model(torch.nn.Module):
    def __init__(self, attn_input_format: str) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            te.TransformerLayer(
                HIDDEN, 64, HEADS, num_gqa_groups=GROUPS, normalization="RMSNorm",
                attn_input_format=attn_input_format, layer_number=i + 1, device="cpu",
                init_method=lambda weight: torch.nn.init.normal_(weight, std=0.3),
            )
            for i in range(2)
        )  # fmt: skip
        self.register_buffer("angles", te.RotaryPositionEmbedding(HIDDEN // HEADS)(LONGEST))

    def forward(self, x, **arguments):
        for layer in self.layers:
            x = layer(x, rotary_pos_emb=self.angles, **arguments)
        return x


def caches(is_paged=False, **changed):
    pages = {"is_paged": True, "page_size": 4, "total_num_pages": 6} if is_paged else {}
    arguments = {"num_heads_kv": GROUPS, "head_dim_k": HIDDEN // HEADS, "dtype": torch.float32}
    return te.InferenceParams(3, LONGEST, **arguments, **pages, **changed)


# The new tokens of each sequence in each iteration: prompts of two lengths, single tokens, a
# sequence that ends and is replaced by another one at its place, then several tokens at once.
STEPS = [
    OrderedDict(a=5, b=3),
    OrderedDict(a=1, b=1),
    OrderedDict(a=1, b=1),
    OrderedDict(c=4, b=1),
    OrderedDict(c=1, b=3),
    OrderedDict(b=2, d=1, c=1),
]


@pytest.mark.parametrize("is_paged", [False, True])
@pytest.mark.parametrize("layout", ["sbhd", "bshd"])
def test_cached_steps_equal_recomputing_whole_sequences(layout, is_paged):
    torch.manual_seed(1)
    model = Model(layout).eval()
    params = caches(is_paged)
    tokens = {name: torch.randn(LONGEST, HIDDEN) for name in "abcd"}
    seen = dict.fromkeys(tokens, 0)
    for step in STEPS:
        params.pre_step(step)
        batch = torch.randn(max(step.values()), len(step), HIDDEN)  # garbage where nothing is new
        for b, (name, count) in enumerate(step.items()):
            batch[:count, b] = tokens[name][seen[name] : seen[name] + count]
        as_laid_out = batch if layout == "sbhd" else batch.transpose(0, 1)
        with torch.no_grad():
            out = model(as_laid_out, inference_params=params)
        out = out if layout == "sbhd" else out.transpose(0, 1)
        for b, (name, count) in enumerate(step.items()):
            seen[name] += count
            whole = tokens[name][: seen[name], None]
            with torch.no_grad():
                expected = model(whole if layout == "sbhd" else whole.transpose(0, 1))
            expected = expected.reshape(seen[name], HIDDEN)[-count:]
            torch.testing.assert_close(out[:count, b], expected, rtol=1e-4, atol=1e-5)


def test_a_forward_without_the_caches_is_as_before():
    torch.manual_seed(2)
    model, x = Model("sbhd").eval(), torch.randn(4, 1, HIDDEN)
    plain = model(x)
    params = caches()
    params.pre_step({"a": 4})
    with torch.no_grad():
        model(x, inference_params=params)
    assert torch.equal(model(x), plain)


def test_invalid_arguments_are_rejected():
    params = caches(is_paged=True)
    with pytest.raises(telens.UsageError, match="13 tokens; max_sequence_length is 12"):
        params.pre_step({"a": 13})
    with pytest.raises(telens.UsageError, match="4 sequences; max_batch_size is 3"):
        params.pre_step(dict.fromkeys("abcd", 1))
    with pytest.raises(telens.UsageError, match="need 7 pages more, and 6 of 6 are free"):
        params.pre_step({"a": 12, "b": 12, "c": 1})
    params.pre_step({"a": 2})
    model = Model("sbhd").eval().requires_grad_(False)
    with pytest.raises(
        telens.ShapeError, match=r"keys of 1 sequences with 1 tokens; .*announced \[2\]"
    ):
        model(torch.randn(1, 1, HIDDEN), inference_params=params)
    with pytest.raises(telens.UsageError, match="inference_params must be telens"):
        model(torch.randn(1, 1, HIDDEN), inference_params=3)
    with pytest.raises(telens.UsageError, match="sequence 'a' has -1 new tokens"):
        params.pre_step({"a": -1})
    with pytest.raises(telens.UsageError, match="page_size must be at least 1"):
        te.InferenceParams(3, 4, 2, 8, torch.float32, is_paged=True, total_num_pages=3, page_size=0)
    with pytest.raises(telens.UsageError, match="qkv_format"):
        caches(qkv_format="xyz")
    key = torch.randn(1, 1, GROUPS, 8)
    with pytest.raises(telens.UsageError, match="call pre_step first"):
        caches().step(1, key, key, "bshd")
    params = caches()
    params.pre_step({"a": 1})
    with pytest.raises(telens.ShapeError, match=r"keys have 4 heads of size 8; .* num_heads_kv 2"):
        params.step(1, torch.randn(1, 1, 4, 8), key, "bshd")
    with pytest.raises(telens.UsageError, match="keys or values want gradients"):
        params.step(1, key, key.clone().requires_grad_(), "bshd")
    with torch.no_grad():
        params.step(1, key, key.clone().requires_grad_(), "bshd")


@pytest.mark.parametrize("gap", [0, 2])
@pytest.mark.parametrize("is_paged", [False, True])
@pytest.mark.parametrize("norm", [None, "RMSNorm"])
def test_packed_steps_equal_recomputing_whole_sequences(is_paged, gap, norm):
    """``gap``: tokens of padding after each sequence."""
    torch.manual_seed(1)
    layer = te.TransformerLayer(
        HIDDEN, 64, HEADS, num_gqa_groups=GROUPS, attn_input_format="thd", layer_number=1,
        self_attn_mask_type="padding_causal", qk_norm_type=norm, device="cpu",
        init_method=lambda weight: torch.nn.init.normal_(weight, std=0.3),
    ).eval()  # fmt: skip
    angles = te.RotaryPositionEmbedding(HIDDEN // HEADS)(LONGEST)
    params = caches(is_paged, qkv_format="thd", max_ctx_len=LONGEST)
    tokens = {name: torch.randn(LONGEST, HIDDEN) for name in "abcd"}
    seen = dict.fromkeys(tokens, 0)
    for step in STEPS:
        params.pre_step(step)
        lengths = torch.tensor([0, *step.values()])
        sums, starts = lengths.cumsum(0).int(), (lengths + gap).cumsum(0).int() - gap
        packed = torch.randn(int(starts[-1]) + gap, HIDDEN)
        for start, (name, count) in zip(starts.tolist(), step.items(), strict=False):
            packed[start : start + count] = tokens[name][seen[name] : seen[name] + count]
        padded = {"cu_seqlens_q_padded": starts, "cu_seqlens_kv_padded": starts} if gap else {}
        with torch.no_grad():
            out = layer(
                packed, inference_params=params, rotary_pos_emb=angles, cu_seqlens_q=sums,
                cu_seqlens_kv=sums, max_seqlen_q=LONGEST, max_seqlen_kv=LONGEST, **padded,
            )  # fmt: skip
        for start, (name, count) in zip(starts.tolist(), step.items(), strict=False):
            seen[name] += count
            whole = torch.tensor([0, seen[name]], dtype=torch.int32)
            with torch.no_grad():
                expected = layer(
                    tokens[name][: seen[name]], rotary_pos_emb=angles, cu_seqlens_q=whole
                )[-count:]
            torch.testing.assert_close(out[start : start + count], expected, rtol=1e-4, atol=1e-5)


def test_a_subclass_wraps_a_cached_forward_once():
    class Wrapped(te.TransformerLayer):
        def forward(self, *args, **kwargs):
            return (super().forward(*args, **kwargs),)

    layer = Wrapped(HIDDEN, 64, HEADS, num_gqa_groups=GROUPS, device="cpu").eval()
    params = caches()
    params.pre_step({"a": 2})
    with torch.no_grad():
        out = layer(torch.randn(2, 1, HIDDEN), inference_params=params)
    assert isinstance(out, tuple)
    assert isinstance(out[0], torch.Tensor)


def test_cache_manager_holds_keys_by_layer_and_takes_reordered_ones():
    from telens.pytorch.attention.inference import NonPagedKVCacheManager, PagedKVCacheManager

    assert isinstance(caches(is_paged=True).cache_manager, PagedKVCacheManager)
    params = caches()
    assert isinstance(params.cache_manager, NonPagedKVCacheManager)
    key, value = torch.randn(2, 2, 4, GROUPS, 8)
    params.pre_step({"a": 4, "b": 4})
    params.step(1, key, value, "bshd")
    keys, values = params.cache_manager.cache[1]
    assert keys.shape == values.shape == (3, LONGEST, GROUPS, 8)
    assert torch.equal(keys[:2, :4], key)
    order = torch.tensor([1, 0])  # as a beam search does
    params.cache_manager.cache[1] = (keys.index_select(0, order), values.index_select(0, order))
    params.pre_step({"a": 1, "b": 1})
    kept, _ = params.step(1, key[:, :1], value[:, :1], "bshd")
    assert torch.equal(kept[:, :4], key[[1, 0]])


def test_a_cache_that_is_not_contiguous_is_refused():
    params = caches()
    key = torch.randn(1, 2, GROUPS, 8)
    params.pre_step({"a": 2})
    params.step(1, key, key, "bshd")
    keys, values = params.cache_manager.cache[1]
    params.cache_manager.cache[1] = (keys.mT.contiguous().mT, values)
    params.pre_step({"a": 2})
    with pytest.raises(telens.ShapeError, match="cache of layer 1 is not contiguous"):
        params.step(1, key, key, "bshd")


def test_a_custom_cache_manager_stores_the_caches():
    from telens.pytorch.attention.inference import KVCacheManager

    class Counting(KVCacheManager):
        steps = 0

        def pre_step(self, step_dict):
            self.steps += 1
            return super().pre_step(step_dict)

    params = caches(custom_cache_manager=Counting)
    params.pre_step({"a": 2})
    assert (params.cache_manager.steps, params.sequences) == (1, {"a": 2})
    with pytest.raises(telens.UsageError, match="custom_cache_manager must be None, or a subclass"):
        caches(custom_cache_manager=int)


@pytest.mark.parametrize("argument", ["num_heads_kv", "head_dim_k"])
def test_a_bool_is_not_a_size_of_a_cache(argument):
    with pytest.raises(telens.UsageError, match=f"{argument} must be an integer"):
        te.InferenceParams(
            3, LONGEST, **{"num_heads_kv": 2, "head_dim_k": 8, argument: True}, dtype=torch.float32
        )


def test_standalone_dot_product_attention_uses_caches():
    torch.manual_seed(3)
    attention = te.DotProductAttention(HEADS, 8, GROUPS, layer_number=7)
    assert attention.layer_number == 7
    params = caches()
    query = torch.randn(6, 1, HEADS, 8)
    key, value = torch.randn(2, 6, 1, GROUPS, 8)
    params.pre_step({"a": 5})
    attention(query[:5], key[:5], value[:5], inference_params=params)
    params.pre_step({"a": 1})
    out = attention(query[5:], key_layer=key[5:], value_layer=value[5:], inference_params=params)
    torch.testing.assert_close(out, attention(query, key, value)[5:], rtol=1e-5, atol=1e-5)


def test_masks_and_lengths_that_agree_with_pre_step_are_accepted():
    model = te.MultiheadAttention(HIDDEN, HEADS, num_gqa_groups=GROUPS, device="cpu").eval()
    x = torch.randn(2, 1, HIDDEN)

    def run(**arguments):
        params = caches()
        params.pre_step({"a": 2})
        with torch.no_grad():
            return model(x, inference_params=params, **arguments)

    mask = torch.zeros(1, 1, 1, 2, dtype=torch.bool)
    expected = run()
    for arguments in (
        {"attn_mask_type": "padding_causal", "attention_mask": mask},
        {"attn_mask_type": "padding_causal", "attention_mask": mask[:, 0, 0]},
        {"cu_seqlens_q": torch.tensor([0, 2], dtype=torch.int32)},
        {"cu_seqlens_q": torch.tensor([0, 2, 2, 2], dtype=torch.int32)},  # of a fixed batch size
    ):
        assert torch.equal(run(**arguments), expected)
    for arguments in (
        {"attn_mask_type": "padding", "attention_mask": mask.logical_not()},
        {"attn_mask_type": "arbitrary", "attention_mask": mask},
        {"cu_seqlens_q": torch.tensor([0, 1], dtype=torch.int32)},
    ):
        with pytest.raises(telens.UsageError, match="lengths of sequences come from pre_step"):
            run(**arguments)


def test_angles_of_too_few_positions_are_refused():
    model = Model("sbhd").eval()
    model.angles = model.angles[:4]
    params = caches()
    params.pre_step({"a": 5})
    with torch.no_grad(), pytest.raises(telens.ShapeError, match=r"has 4 positions, .* 5 tokens"):
        model(torch.randn(5, 1, HIDDEN), inference_params=params)


def test_cross_attention_is_not_cached():
    made = {"num_gqa_groups": GROUPS, "device": "cpu"}
    cross = te.MultiheadAttention(HIDDEN, HEADS, attention_type="cross", **made).eval()
    x, memory = torch.randn(3, 1, HIDDEN), torch.randn(5, 1, HIDDEN)
    params = caches()
    params.pre_step({"a": 3})
    with pytest.raises(telens.UsageError, match="inference_params is for self attention"):
        cross(x, encoder_output=memory, inference_params=params)
    decoder = te.TransformerLayer(HIDDEN, 64, HEADS, layer_type="decoder", **made).eval()
    angles = te.RotaryPositionEmbedding(8)(LONGEST)
    with pytest.raises(telens.UsageError, match="rotary_pos_emb of a decoder does not go with"):
        decoder(x, encoder_output=memory, inference_params=params, rotary_pos_emb=angles)
    with torch.no_grad():
        whole = decoder(x, encoder_output=memory)
        parts = []
        params = caches()
        for token in x.split(1):
            params.pre_step({"a": 1})
            parts.append(decoder(token, encoder_output=memory, inference_params=params))
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-5)


def test_rows_after_a_sequence_are_zero():
    params = caches()
    params.pre_step({"a": 2, "b": 1})
    new = torch.full((2, 2, GROUPS, 8), torch.nan)
    new[1] = 1
    keys, values = params.step(1, new, new, "bshd")
    assert keys[0].isnan().all()
    for kept in (keys, values):
        assert torch.equal(kept[1, 0], torch.ones(GROUPS, 8))
        assert torch.equal(kept[1, 1], torch.zeros(GROUPS, 8))


def test_duplicate_layer_numbers_are_rejected():
    made = {"num_gqa_groups": GROUPS, "device": "cpu"}
    first, second = (
        te.MultiheadAttention(HIDDEN, HEADS, layer_number=1, **made).eval() for _ in range(2)
    )
    params, x = caches(), torch.randn(2, 1, HIDDEN)
    params.pre_step({"a": 2})
    with torch.no_grad():
        first(x, inference_params=params)
        with pytest.raises(telens.UsageError, match="two attentions have the layer_number 1"):
            second(x, inference_params=params)
        for _ in range(3):  # an object that is gone may have left its id to the next
            unnumbered = te.MultiheadAttention(HIDDEN, HEADS, **made).eval()
            number = params.layer_number(unnumbered)
            assert number == params.layer_number(unnumbered)
            assert number < 0
