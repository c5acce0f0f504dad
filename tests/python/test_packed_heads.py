"""DotProductAttention's qkv_layer and kv_layer: the tensors as parts of one."""

import pytest
import torch

import telens
import telens.pytorch as te

HEADS, SIZE, TOKENS, BATCH = 2, 8, 6, 3
LEADING = {"sbhd": (TOKENS, BATCH), "bshd": (BATCH, TOKENS), "thd": (TOKENS,)}
OF_THD = {
    "attn_mask_type": "padding_causal",
    "cu_seqlens_q": torch.tensor([0, 2, TOKENS], dtype=torch.int32),
}


def attention(**options) -> te.DotProductAttention:
    return te.DotProductAttention(HEADS, SIZE, attention_dropout=0, **options)


def packed(qkv_format: str, parts: int, dim: int, heads: int = HEADS) -> torch.Tensor:
    trailing = (parts, heads, SIZE) if dim == -3 else (heads, parts, SIZE)
    return torch.randn(*LEADING[qkv_format], *trailing, requires_grad=True)


def result(module, leaves, *inputs, **arguments) -> list[torch.Tensor]:
    out = module(*inputs, **arguments)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves)]


@pytest.mark.parametrize("dim", [-3, -2])
@pytest.mark.parametrize("qkv_format", LEADING)
@pytest.mark.parametrize("name", ["qkv_layer", "kv_layer"])
def test_packed_tensors_are_their_parts(name, qkv_format, dim):
    torch.manual_seed(91)
    module = attention(qkv_format=qkv_format)
    others = OF_THD if qkv_format == "thd" else {}
    tensor = packed(qkv_format, 3 if name == "qkv_layer" else 2, dim)
    query = torch.randn(*LEADING[qkv_format], HEADS, SIZE, requires_grad=True)
    inputs = [] if name == "qkv_layer" else [query]
    # The parts in the order of the names, taken by index.
    axis = tensor.dim() + dim
    parts = [tensor[(slice(None),) * axis + (i,)] for i in range(tensor.size(axis))]
    leaves = [tensor, *inputs]
    expected = result(module, leaves, *inputs, *parts, **others)
    arguments = {name: tensor, **({} if dim == -3 else {"qkv_interleave_dim": dim})}
    actual = result(module, leaves, *inputs, **arguments, **others)
    if inputs:
        by_name = result(module, leaves, query_layer=query, **arguments, **others)
        assert all(torch.equal(one, other) for one, other in zip(by_name, actual, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))


def test_fewer_heads_of_keys_may_be_packed():
    torch.manual_seed(92)
    module = attention(qkv_format="bshd", num_gqa_groups=1)
    query, tensor = torch.randn(BATCH, TOKENS, HEADS, SIZE), packed("bshd", 2, -3, heads=1)
    expected = module(query, tensor[:, :, 0], tensor[:, :, 1])
    assert torch.equal(module(query, kv_layer=tensor), expected)
    with pytest.raises(telens.ShapeError, match=r"query_layer is .*expected 4 dimensions, 2 heads"):
        module(qkv_layer=packed("bshd", 3, -3, heads=1))


def test_new_tokens_of_a_cache_may_be_packed():
    torch.manual_seed(93)
    tensor = packed("bshd", 3, -3).detach()
    outputs = []
    for call in ({"qkv_layer": tensor}, dict(zip(("query_layer", "key_layer", "value_layer"),
                                                 tensor.unbind(-3), strict=True))):  # fmt: skip
        module = attention(qkv_format="bshd", layer_number=1).eval()
        params = te.InferenceParams(
            max_batch_size=BATCH, max_sequence_length=TOKENS, num_heads_kv=HEADS,
            head_dim_k=SIZE, dtype=torch.float32,
        )  # fmt: skip
        params.pre_step(dict.fromkeys(range(BATCH), TOKENS))
        with torch.no_grad():
            outputs.append(module(**call, inference_params=params))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("masked", [False, True])
def test_none_for_a_packed_argument_is_ignored(masked):
    torch.manual_seed(94)
    module = attention(qkv_format="bshd")
    hides = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(2)
    rest = (hides, "bshd") if masked else ()
    mask = {"attn_mask_type": "arbitrary"} if masked else {}
    query, tensor = torch.randn(BATCH, TOKENS, HEADS, SIZE), packed("bshd", 3, -3)
    expected = module(*tensor.unbind(-3), *rest, **mask)
    assert torch.equal(module(None, None, None, *rest, qkv_layer=tensor, **mask), expected)
    key_value = tensor[:, :, 1:]
    expected = module(query, *key_value.unbind(-3), *rest, **mask)
    assert torch.equal(module(query, None, None, *rest, kv_layer=key_value, **mask), expected)


def test_a_module_without_packed_tensors_says_so():
    linear = te.GroupedLinear(1, SIZE, SIZE)
    with pytest.raises(TypeError, match="qkv_layer"):
        linear(torch.zeros(4, SIZE), [4], out=None, qkv_layer=QKV)


Q = torch.zeros(TOKENS, BATCH, HEADS, SIZE)
QKV = torch.zeros(TOKENS, BATCH, 3, HEADS, SIZE)
KV = torch.zeros(TOKENS, BATCH, 2, HEADS, SIZE)


@pytest.mark.parametrize(
    ("inputs", "arguments", "error", "message"),
    [
        ([Q], {"qkv_layer": QKV}, telens.UsageError, "qkv_layer holds query_layer"),
        ([Q, Q], {"kv_layer": KV}, telens.UsageError, "kv_layer holds key_layer"),
        ([], {"qkv_layer": QKV, "value_layer": Q}, telens.UsageError, "holds value_layer"),
        ([Q], {"qkv_layer": QKV, "kv_layer": KV}, telens.UsageError, "are both given"),
        ([], {"qkv_layer": KV}, telens.ShapeError,
         r"qkv_layer is \[6, 3, 2, 2, 8\]; .*it is \[..., 3, heads, size\]"),
        ([Q], {"kv_layer": QKV.transpose(-3, -2), "qkv_interleave_dim": -2}, telens.ShapeError,
         r"with qkv_interleave_dim=-2 it is \[..., heads, 2, size\]"),
        ([], {"qkv_layer": QKV, "qkv_interleave_dim": 2}, telens.UsageError, "-3 or -2"),
        ([], {"qkv_layer": True}, telens.UsageError, "a tensor of 3 parts"),
    ],
)  # fmt: skip
def test_a_mistake_is_an_error_that_names_it(inputs, arguments, error, message):
    with pytest.raises(error, match=message):
        attention()(*inputs, **arguments)
