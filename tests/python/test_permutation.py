"""moe_permute and related functions against index_select, index_add_ and cat of torch."""

import warnings

import pytest
import torch

import telens
import telens.pytorch as te
from telens.common.recipe import MXFP8BlockScaling

# Tokens for no, one and all experts, and an expert without tokens.
ROUTING = torch.tensor(
    [[1, 0, 1, 1], [0, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1], [0, 0, 0, 1]], dtype=torch.bool
)
TOKENS, EXPERTS, HIDDEN = *ROUTING.shape, 24
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
NOTHING = -1


def routed_pairs(routing):
    """(expert, token) of each row: by expert, then by token."""
    return [(e, t) for e in range(routing.size(1)) for t in range(routing.size(0)) if routing[t, e]]


def tokens_of(routing):
    return torch.tensor([token for _, token in routed_pairs(routing)], dtype=torch.int64)


def probs_of_rows(probs, routing):
    return torch.stack([probs[token, expert] for expert, token in routed_pairs(routing)])


def random_bits(*shape, dtype):
    """Values of every kind: NaNs with payloads, infinities, -0, subnormals."""
    integer = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    limits = torch.iinfo(integer)
    return torch.randint(limits.min, limits.max, shape, dtype=integer).view(dtype)


def bits(tensor):
    return tensor.contiguous().view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.itemsize]
    )


def leaf(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


# ---------------------------------------------------------------- maps


def test_a_mask_has_the_row_id_map_of_transformer_engine():
    routing = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0]])
    expected = [
        [3, 0, NOTHING, 1, 0, NOTHING, 2],
        [5, 1, NOTHING, 2, 0, NOTHING, 2],
        [6, NOTHING, NOTHING, 2, NOTHING, NOTHING, 1],
        [4, 2, NOTHING, 1, 0, NOTHING, 2],
        [NOTHING] * 6 + [0],
    ]
    _, row_id_map = te.moe_permute(torch.randn(5, 8), routing)
    assert row_id_map.dtype == torch.int32
    assert row_id_map.tolist() == expected


@pytest.mark.parametrize("map_type", ["mask", "index"])
def test_unpermute_rejects_rows_beyond_its_input(map_type):
    routing = ROUTING if map_type == "mask" else torch.tensor([[2], [0], [1]], dtype=torch.int32)
    rows, row_id_map = te.moe_permute(torch.randn(len(routing), 8), routing, map_type=map_type)
    assert te.moe_unpermute(rows, row_id_map, map_type=map_type).shape == (len(routing), 8)
    message = rf"row_id_map has row {len(rows) - 1}, but inp has {len(rows) - 1} rows"
    with pytest.raises(telens.UsageError, match=message):
        te.moe_unpermute(rows[:-1], row_id_map, map_type=map_type)


def test_unpermute_ignores_unwritten_slots_of_a_mask_map():
    rows, row_id_map = te.moe_permute(torch.randn(TOKENS, 8), ROUTING)
    expected = te.moe_unpermute(rows, row_id_map)
    for token, count in enumerate(row_id_map[:, -1].tolist()):
        row_id_map[token, count:EXPERTS] = 1000
    assert torch.equal(te.moe_unpermute(rows, row_id_map), expected)


def test_index_map_lists_first_choices_then_second_choices():
    index = torch.tensor([[2, 0], [0, 1], [2, 1]], dtype=torch.int32)
    # Sorted: expert 0 has tokens 0 and 1, expert 1 has 1 and 2, expert 2 has 0 and 2.
    _, row_id_map = te.moe_permute(torch.randn(3, 8), index, map_type="index")
    assert row_id_map.tolist() == [4, 1, 5, 0, 2, 3]
    _, row_id_map = te.moe_permute(torch.randn(3, 8), index, num_out_tokens=4, map_type="index")
    assert row_id_map.tolist() == [NOTHING, 1, NOTHING, 0, 2, 3]


def test_an_empty_slot_of_an_index_takes_no_row():
    x = torch.arange(1.0, 5.0).view(4, 1).repeat(1, 16).requires_grad_()
    slots = torch.tensor([[0, 1], [1, -1], [2, 0], [-1, 2]], dtype=torch.int32)
    for count in (6, -1, 0, 8):
        rows, row_id_map = te.moe_permute(x, slots, num_out_tokens=count, map_type="index")
        made = 6 if count == 6 else 8  # without a number: a row for each slot, the last ones 0
        assert rows[:, 0].tolist() == [1, 3, 1, 2, 3, 4, 0, 0][:made]
        assert row_id_map.tolist() == [0, 3, 4, NOTHING, 2, NOTHING, 1, 5]
        back = te.moe_unpermute(rows, row_id_map, torch.ones(4, 2), map_type="index")
        assert back[:, 0].tolist() == [2, 2, 6, 4]
    back.sum().backward()
    assert x.grad[:, 0].tolist() == [2, 1, 2, 1]


def test_tokens_without_experts_of_an_index_are_zero():
    none = torch.full((3, 2), -1, dtype=torch.int32)
    rows, row_id_map = te.moe_permute(torch.randn(3, 8), none, map_type="index")
    assert rows.eq(0).all()
    assert row_id_map.tolist() == [NOTHING] * 6
    assert te.moe_unpermute(rows, row_id_map, torch.ones(3, 2), map_type="index").eq(0).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int8])
def test_a_negative_entry_of_a_mask_routes_nothing(dtype):
    mask = torch.where(ROUTING, 1, NOTHING).to(dtype)
    x, probs = torch.randn(TOKENS, HIDDEN), torch.rand(TOKENS, EXPERTS)
    expected = te.moe_permute_with_probs(x, probs, ROUTING)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for count in (-1, int(ROUTING.sum())):
            for made, whole in zip(
                te.moe_permute_with_probs(x, probs, mask, count), expected, strict=True
            ):
                assert torch.equal(made, whole)


# ---------------------------------------------------------------- copies


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_bit_equal_copies(dtype):
    inp = random_bits(TOKENS, HIDDEN, dtype=dtype)
    rows, _ = te.moe_permute(inp, ROUTING)
    assert torch.equal(bits(rows), bits(inp).index_select(0, tokens_of(ROUTING)))
    index = torch.randint(0, EXPERTS, (TOKENS, 3), dtype=torch.int32)
    rows, _ = te.moe_permute(inp, index, map_type="index")
    order = index.flatten().sort(stable=True).indices // 3
    assert torch.equal(bits(rows), bits(inp).index_select(0, order))


def test_later_rows_are_dropped_and_missing_ones_are_zero():
    inp = torch.randn(TOKENS, HIDDEN)
    every, _ = te.moe_permute(inp, ROUTING)
    count = every.size(0)
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("default")
        for dropped in (1, 2, 3):
            fewer, row_id_map = te.moe_permute(inp, ROUTING, num_out_tokens=count - dropped)
    assert [str(each.message) for each in messages] == [
        "moe_permute: num_out_tokens is less than the rows that routing_map routes, and the last "
        "ones are dropped; give routing_map.sum(), or -1"
    ]
    assert torch.equal(fewer, every[:-3])
    back = te.moe_unpermute(fewer, row_id_map)
    kept = torch.zeros_like(inp).index_add_(0, tokens_of(ROUTING)[:-3], fewer)
    assert torch.allclose(back, kept, rtol=0, atol=1e-6)
    more, row_id_map = te.moe_permute(inp, ROUTING, num_out_tokens=count + 2)
    assert torch.equal(more[:count], every)
    assert more[count:].eq(0).all()
    assert torch.equal(te.moe_unpermute(more, row_id_map), te.moe_unpermute(every, row_id_map))


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_are_sorted_as_cat_sorts_them(dtype):
    sizes = torch.tensor([3, 0, 4, 1], dtype=torch.int32)
    order = torch.tensor([2, 0, 3, 1], dtype=torch.int32)
    inp = random_bits(8, HIDDEN, dtype=dtype)
    chunks = bits(inp).split(sizes.tolist())
    expected = torch.cat([chunks[i] for i in order])
    assert torch.equal(bits(te.moe_sort_chunks_by_index(inp, sizes, order)), expected)
    probs = torch.rand(8)
    rows, row_probs = te.moe_sort_chunks_by_index_with_probs(inp, probs, sizes, order)
    assert torch.equal(bits(rows), expected)
    parts = probs.split(sizes.tolist())
    assert torch.equal(row_probs, torch.cat([parts[i] for i in order]))


@pytest.mark.parametrize(
    ("sizes", "order", "match"),
    [
        ([3, -1, 1], [0, 1, 2], "split_sizes has -1; expected 0 or more"),
        ([1, 2], [0, -1], r"sorted_index is \[0, -1\]; expected each chunk's number once"),
    ],
)
def test_sentinels_in_chunks_are_refused_by_name(sizes, order, match):
    with pytest.raises(telens.UsageError, match=match):
        te.moe_sort_chunks_by_index(torch.randn(3, 4), torch.tensor(sizes), torch.tensor(order))


@pytest.mark.parametrize("padding", [te.Fp8Padding(2, 16), te.Fp8Unpadding(2, 16)])
def test_a_negative_part_is_refused_by_name(padding):
    with pytest.raises(telens.UsageError, match="m_splits must be numbers of 0 or more, not -1"):
        padding(torch.randn(3, 8), [4, -1])


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(telens.ShapeError, match=r"split_sizes are 3 rows in all; inp has 8"):
        te.moe_sort_chunks_by_index(torch.randn(8, 4), torch.tensor([1, 2]), torch.tensor([1, 0]))


def test_chunks_are_sorted_with_their_probabilities():
    sizes = torch.tensor([1, 2])
    with pytest.raises(RuntimeError, match="each chunk's number once"):
        te.moe_sort_chunks_by_index(torch.randn(3, 4), sizes, torch.tensor([0, 0]))
    with pytest.raises(telens.ShapeError, match="one for each of the 3 rows"):
        te.moe_sort_chunks_by_index_with_probs(
            torch.randn(3, 4), torch.rand(4), sizes, torch.tensor([1, 0])
        )


@pytest.mark.parametrize(("tokens", "experts"), [(0, 4), (3, 0)])
def test_rank_without_tokens_has_a_fixed_number_of_empty_rows(tokens, experts):
    routing = torch.zeros(tokens, experts, dtype=torch.bool)
    rows, row_id_map = te.moe_permute(torch.randn(tokens, 8), routing, num_out_tokens=4)
    assert torch.equal(rows, torch.zeros(4, 8))
    assert torch.equal(te.moe_unpermute(rows, row_id_map), torch.zeros(tokens, 8))
    with pytest.raises(telens.ShapeError, match=r"routing_map is \[5, 4\]"):
        te.moe_permute(torch.randn(4, 8), ROUTING)
    with pytest.raises(telens.UsageError, match="map_type must be one of mask, index"):
        te.moe_permute(torch.randn(5, 8), ROUTING, map_type="masks")


# ---------------------------------------------------------------- sums


@pytest.mark.parametrize("dtype", DTYPES)
def test_unpermuting_adds_a_tokens_rows_in_fp32_and_rounds_once(dtype):
    tokens = tokens_of(ROUTING)
    rows = torch.randn(len(tokens), HIDDEN, dtype=dtype)
    _, row_id_map = te.moe_permute(torch.randn(TOKENS, HIDDEN), ROUTING)
    probs = torch.rand(TOKENS, EXPERTS)
    weighted = rows.double() * probs_of_rows(probs, ROUTING).double().unsqueeze(1)
    for merging, terms in ((None, rows.double()), (probs, weighted)):
        out = te.moe_unpermute(rows, row_id_map, merging)
        exact = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64).index_add_(0, tokens, terms)
        size = torch.zeros_like(exact).index_add_(0, tokens, terms.abs())
        assert out.dtype == dtype
        # Up to three products and two sums in FP32, then one rounding.
        error = (out.double() - exact).abs()
        bound = size * 5 * 2.0**-24 + exact.abs() * torch.finfo(dtype).eps / 2
        assert (error <= bound * (1 + 2.0**-10) + 2.0**-24).all()
    assert out[1].eq(0).all(), "a token without experts"


def test_unpermuting_by_index_weighs_a_tokens_choices():
    index = torch.stack([torch.randperm(EXPERTS)[:2] for _ in range(TOKENS)]).to(torch.int32)
    inp = torch.randn(TOKENS, HIDDEN)
    rows, row_id_map = te.moe_permute(inp, index, map_type="index")
    probs = torch.rand(TOKENS, 2)
    out = te.moe_unpermute(rows, row_id_map, probs, map_type="index")
    assert torch.allclose(out, inp * probs.sum(1, keepdim=True), rtol=1e-6, atol=1e-6)
    one = index[:, :1].contiguous()
    rows, row_id_map = te.moe_permute(inp, one, map_type="index")
    assert torch.equal(te.moe_unpermute(rows, row_id_map, map_type="index"), inp)


def test_gradients_and_second_gradients_match_finite_differences():
    inp, probs = leaf(TOKENS, 3), leaf(TOKENS, EXPERTS)
    index = torch.randint(0, EXPERTS, (TOKENS, 2), dtype=torch.int32)
    sizes, order = torch.tensor([2, 3]), torch.tensor([1, 0])

    def through_experts(x, p):
        rows, row_probs, row_id_map = te.moe_permute_with_probs(x, p, ROUTING)
        return te.moe_unpermute((rows * row_probs.unsqueeze(1)).sin(), row_id_map, p.cos())

    def through_choices(x, p):
        rows, row_id_map = te.moe_permute(x, index, map_type="index")
        return te.moe_unpermute(rows.sin(), row_id_map, p[:, :2], map_type="index")

    def through_chunks(x, p):
        rows, row_probs = te.moe_sort_chunks_by_index_with_probs(x, p[:, 0], sizes, order)
        return rows.sin() * row_probs.unsqueeze(1)

    for function in (through_experts, through_choices, through_chunks):
        assert torch.autograd.gradcheck(function, (inp, probs))
        assert torch.autograd.gradgradcheck(function, (inp, probs))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_of_a_token_is_the_sum_of_its_rows_gradients(dtype):
    inp = torch.randn(TOKENS, HIDDEN, dtype=dtype, requires_grad=True)
    rows, row_id_map = te.moe_permute(inp, ROUTING)
    # Not contiguous, as gradients of views are.
    grad = torch.randn(HIDDEN, len(rows), dtype=dtype).t()
    rows.backward(grad)
    assert torch.equal(inp.grad, te.moe_unpermute(grad.contiguous(), row_id_map))


# ---------------------------------------------------------------- padding


@pytest.mark.parametrize("align", [1, 4])
def test_padded_rows_are_zero_and_unpermuting_leaves_them_out(align):
    inp, probs = leaf(TOKENS, 3), leaf(TOKENS, EXPERTS)
    counts = ROUTING.sum(0)

    def padded(x, p):
        return te.moe_permute_and_pad_with_probs(x, p, ROUTING, counts, align)

    rows, row_probs, row_id_map, offsets, sizes = padded(inp, probs)
    assert sizes.tolist() == [-(-count // align) * align for count in counts.tolist()]
    plain, plain_probs, _ = te.moe_permute_with_probs(inp, probs, ROUTING)
    parts = zip(rows.split(sizes.tolist()), plain.split(counts.tolist()), strict=True)
    for part, expected in parts:
        assert torch.equal(part[: len(expected)], expected)
        assert part[len(expected) :].eq(0).all()
    assert torch.equal(row_probs[row_probs != 0], plain_probs)
    back = te.moe_unpermute(rows, row_id_map, probs, pad_offsets=offsets)
    plain_back = te.moe_unpermute(plain, te.moe_permute(inp, ROUTING)[1], probs)
    assert torch.equal(back, plain_back)
    assert (offsets is None) == (align == 1)

    def through(x, p):
        made = padded(x, p)
        return te.moe_unpermute(made[0].sin() * made[1].unsqueeze(1), made[2], p, None, "mask",
                                None, made[3])  # fmt: skip

    assert torch.autograd.gradcheck(through, (inp, probs))


def test_parts_of_a_grouped_gemm_are_padded_and_unpadded():
    splits = [3, 0, 16, 5]
    inp = torch.randn(24, 8, dtype=torch.bfloat16, requires_grad=True)
    padded, sizes = te.Fp8Padding(4)(inp, splits)
    assert sizes == [16, 0, 16, 16]
    assert padded.shape == (48, 8)
    for part, expected in zip(padded.split(sizes), inp.split(splits), strict=True):
        assert torch.equal(part[: len(expected)], expected)
        assert part[len(expected) :].eq(0).all()
    back = te.Fp8Unpadding(4)(padded, splits)
    assert torch.equal(back, inp)
    grad = torch.randn_like(back)
    back.backward(grad)
    assert torch.equal(inp.grad, grad)
    assert te.Fp8Padding(1)(inp, [24])[1] == [32]
    with te.fp8_autocast(fp8_recipe=MXFP8BlockScaling()):
        assert te.Fp8Padding(1).align_size == 32
    with pytest.raises(telens.ShapeError, match="one for each of 2 GEMMs"):
        te.Fp8Padding(2)(inp, [24])
    with pytest.raises(telens.ShapeError, match="inp has 24 rows; expected 48"):
        te.Fp8Unpadding(4)(inp, splits)


# ---------------------------------------------------------------- edges


def test_probabilities_in_the_place_of_a_routing_map_are_refused():
    inp, probs = torch.randn(TOKENS, HIDDEN), torch.rand(TOKENS, EXPERTS)
    expected = "routing_map must be bool or integers, .*not torch.float32; probabilities are"
    with pytest.raises(telens.UsageError, match=f"moe_permute: {expected}"):
        te.moe_permute(inp, probs)
    with pytest.raises(telens.UsageError, match=f"moe_permute_with_probs: {expected}"):
        te.moe_permute_with_probs(inp, ROUTING, probs)
    with pytest.raises(telens.UsageError, match="routing_map must be whole numbers, best int32"):
        te.moe_permute(inp, probs, map_type="index")
    with pytest.raises(telens.UsageError, match=r"routing_map must be a tensor: .*, not list"):
        te.moe_permute(inp, ROUTING.tolist())


@pytest.mark.parametrize(
    ("tokens", "experts", "hidden"), [(0, 4, 8), (3, 0, 8), (3, 4, 0), (3, 1, 8)]
)
def test_nothing_to_permute_is_allowed(tokens, experts, hidden):
    inp = torch.randn(tokens, hidden, requires_grad=True)
    routing = torch.zeros(tokens, experts, dtype=torch.bool)
    rows, row_id_map = te.moe_permute(inp, routing)
    assert rows.shape == (0, hidden)
    back = te.moe_unpermute(rows, row_id_map, torch.rand(tokens, experts))
    assert back.shape == (tokens, hidden)
    assert back.eq(0).all()
    back.sum().backward()
    assert inp.grad.eq(0).all()


def test_former_names_and_dtypes_are_taken_with_a_warning():
    inp = torch.randn(TOKENS, HIDDEN)
    index = torch.zeros(TOKENS, 1, dtype=torch.int64)
    with pytest.warns(UserWarning, match="routing_map is torch.int64 and is converted"):
        rows, row_id_map = te.moe_permute(inp, index, map_type="index")
    probs = torch.rand(TOKENS, 1)
    with pytest.warns(DeprecationWarning, match="merging_probs"):
        former = te.moe_unpermute(rows, row_id_map, probs=probs, map_type="index")
    assert torch.equal(former, te.moe_unpermute(rows, row_id_map, probs, map_type="index"))
    with pytest.raises(telens.UsageError, match="both are given"):
        te.moe_unpermute(rows, row_id_map, probs, map_type="index", probs=probs)
    with pytest.raises(telens.ShapeError, match=r"restore_shape is \(1, 2\)"):
        te.moe_unpermute(rows, row_id_map, restore_shape=(1, 2), map_type="index")


QUANTIZERS = {
    "one scale": lambda: te.Float8CurrentScalingQuantizer(telens.pytorch.DType.kFloat8E4M3),
    "a scale for 32 elements": lambda: te.MXFP8Quantizer(telens.pytorch.DType.kFloat8E4M3),
}


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_a_quantized_input_gives_quantized_rows(kind):
    inp = torch.randn(64, 64, dtype=torch.bfloat16)
    quantized = QUANTIZERS[kind]()(inp)
    routing = torch.rand(64, EXPERTS) < 0.4
    rows, row_id_map = te.moe_permute(quantized, routing)
    assert type(rows) is type(quantized)
    plain, plain_map = te.moe_permute(quantized.dequantize(), routing)
    assert torch.equal(rows.dequantize(), plain)
    assert torch.equal(row_id_map, plain_map)
    with pytest.raises(telens.UsageError, match="in high precision"):
        te.moe_unpermute(rows, row_id_map)


def test_torch_compile_traces_through():
    probs = torch.rand(TOKENS, EXPERTS)
    count = int(ROUTING.sum())

    def through(x):
        rows, row_probs, row_id_map = te.moe_permute_with_probs(x, probs, ROUTING, count)
        return te.moe_unpermute(rows * row_probs.unsqueeze(1), row_id_map)

    inp = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    expected = through(inp)
    (grad,) = torch.autograd.grad(expected.sum(), inp)
    compiled = torch.compile(through, backend="aot_eager", fullgraph=True)(inp)
    assert torch.equal(compiled, expected)
    assert torch.equal(torch.autograd.grad(compiled.sum(), inp)[0], grad)


def test_threads_change_no_bit():
    routing = torch.rand(300, 16) < 0.3
    inp, probs = torch.randn(300, 512, dtype=torch.bfloat16), torch.rand(300, 16)
    threads = torch.get_num_threads()

    def results():
        x, p = inp.clone().requires_grad_(), probs.clone().requires_grad_()
        rows, row_id_map = te.moe_permute(x, routing)
        out = te.moe_unpermute(rows, row_id_map, p)
        out.sum().backward()
        return out, x.grad, p.grad

    try:
        torch.set_num_threads(1)
        alone = results()
        torch.set_num_threads(3)
        assert all(map(torch.equal, alone, results()))
    finally:
        torch.set_num_threads(threads)


def test_plain_use_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows, row_id_map = te.moe_permute(torch.randn(TOKENS, HIDDEN), ROUTING)
        te.moe_unpermute(rows, row_id_map, torch.rand(TOKENS, EXPERTS))
