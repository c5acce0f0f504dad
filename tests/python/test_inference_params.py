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


# New tokens of each sequence, iteration by iteration: prompts of two lengths, single tokens, one
# that ends and another that takes its place in front, then several at once.
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
def test_new_tokens_are_those_of_a_recomputation_of_the_whole(layout, is_paged):
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
    model(x, inference_params=params)
    assert torch.equal(model(x), plain)


def test_what_does_not_fit_is_refused():
    params = caches(is_paged=True)
    with pytest.raises(telens.UsageError, match="13 tokens; max_sequence_length is 12"):
        params.pre_step({"a": 13})
    with pytest.raises(telens.UsageError, match="4 sequences; max_batch_size is 3"):
        params.pre_step(dict.fromkeys("abcd", 1))
    with pytest.raises(telens.UsageError, match="need 7 pages more, and 6 of 6 are free"):
        params.pre_step({"a": 12, "b": 12, "c": 1})
    params.pre_step({"a": 2})
    model = Model("sbhd").eval()
    with pytest.raises(telens.ShapeError, match=r"keys of 1 sequences with 1 tokens; .*told \[2\]"):
        model(torch.randn(1, 1, HIDDEN), inference_params=params)
    with pytest.raises(telens.UsageError, match="inference_params must be telens"):
        model(torch.randn(1, 1, HIDDEN), inference_params=3)
