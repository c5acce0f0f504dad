"""Functions of a MoE router against independent formulas and autograd."""

import pytest
import torch

import telens
import telens.pytorch as te

TOKENS, EXPERTS = 12, 8
router = te.router


@pytest.fixture
def logits() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(TOKENS, EXPERTS, requires_grad=True)


def score_row(row: torch.Tensor, function: str) -> torch.Tensor:
    if function == "softmax":
        return row.exp() / row.exp().sum()
    if function == "sigmoid":
        return 1 / (1 + (-row).exp())
    return (1 + row.exp()).log().sqrt()


def route_row(row, topk, pre_softmax, groups, group_topk, function, bias):
    """Returns the chosen experts of one token and their probabilities, by sorting."""
    late = function == "softmax" and not pre_softmax
    scores = row if late else score_row(row, function)
    ranked = scores.detach() if bias is None else scores.detach() + bias
    candidates = set(range(EXPERTS))
    if group_topk:
        size, best = EXPERTS // groups, topk // group_topk
        sums = [sum(sorted(ranked[g * size : (g + 1) * size])[-best:]) for g in range(groups)]
        kept = sorted(range(groups), key=lambda g: sums[g])[-group_topk:]
        candidates = {g * size + e for g in kept for e in range(size)}
    chosen = sorted(candidates, key=lambda e: ranked[e])[-topk:]
    values = torch.stack([scores[e] for e in chosen])
    if late:
        values = values.exp() / values.exp().sum()
    elif function != "softmax" and topk > 1:
        values = values / values.sum()
    return chosen, values


CASES = [
    (1, False, None, None, "softmax", False),
    (3, False, None, None, "softmax", False),
    (2, True, None, None, "softmax", False),
    (4, True, 4, 2, "softmax", False),
    (4, False, 4, 2, "softmax", False),
    (1, False, None, None, "sigmoid", True),
    (4, False, 2, 1, "sigmoid", True),
    (3, False, None, None, "sqrtsoftplus", True),
]


@pytest.mark.parametrize(("topk", "pre", "groups", "group_topk", "function", "biased"), CASES)
def test_topk_routing_equals_a_loop_over_tokens(
    logits, topk, pre, groups, group_topk, function, biased
):
    bias = torch.linspace(-1, 1, EXPERTS) if biased else None
    probs, routed = router.fused_topk_with_score_function(
        logits, topk, pre, groups, group_topk, 2.5, function, bias
    )
    expected = torch.zeros(TOKENS, EXPERTS)
    expected_map = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool)
    rows = [
        route_row(row, topk, pre, groups, group_topk, function, bias) for row in logits.unbind()
    ]
    for token, (chosen, values) in enumerate(rows):
        expected_map[token, chosen] = True
        expected = expected.index_put(
            (torch.full((topk,), token), torch.tensor(chosen)), 2.5 * values
        )
    assert torch.equal(routed, expected_map)
    torch.testing.assert_close(probs, expected)
    weights = torch.randn(TOKENS, EXPERTS)
    ours, theirs = (
        torch.autograd.grad((each * weights).sum(), logits, retain_graph=True)[0]
        for each in (probs, expected)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


def test_a_map_may_be_packed_into_bits_or_be_indices(logits):
    arguments = (logits, 3, False, None, None, None, "softmax", None)
    _, plain = router.fused_topk_with_score_function(*arguments)
    _, bits = router.fused_topk_with_score_function(*arguments, "bitmap_u8")
    unpacked = (bits.unsqueeze(-1) >> torch.arange(8)) & 1
    assert torch.equal(unpacked.flatten(1).bool(), plain)
    indices = torch.zeros(TOKENS, 3, dtype=torch.int16)
    _, same = router.fused_topk_with_score_function(*arguments, topk_indices=indices)
    assert same is indices
    from_indices = torch.zeros_like(plain).scatter(1, indices.long(), True)
    assert torch.equal(from_indices, plain)


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "sqrtsoftplus"])
def test_scores_for_the_auxiliary_loss_sum_to_1(logits, function):
    routed, scores = router.fused_compute_score_for_moe_aux_loss(logits, 2, function)
    rows = [score_row(row, function) for row in logits.unbind()]
    expected = torch.stack([row / row.sum() for row in rows])
    torch.testing.assert_close(scores, expected)
    assert torch.equal(routed.sum(1), torch.full((TOKENS,), 2))
    assert scores[routed].min() >= scores.masked_fill(routed, 0).amax(1).min()


def test_auxiliary_loss_and_gradient_equal_the_formula(logits):
    probs = logits.softmax(-1)
    loads = torch.randint(0, 9, (EXPERTS,))
    loss = router.fused_moe_aux_loss(probs, loads, TOKENS, EXPERTS, 2, 0.1)
    fractions = loads / (TOKENS * 2)
    expected = 0.1 * EXPERTS * (fractions * probs.mean(0)).sum()
    torch.testing.assert_close(loss, expected)
    ours, theirs = (
        torch.autograd.grad(each, logits, retain_graph=True)[0] for each in (loss, expected)
    )
    torch.testing.assert_close(ours, theirs)
    count = torch.tensor(TOKENS)
    assert torch.equal(router.fused_moe_aux_loss(probs, loads, count, EXPERTS, 2, 0.1), loss)


def test_low_precision_logits_keep_their_dtype(logits):
    low = logits.detach().bfloat16().requires_grad_()
    probs, _ = router.fused_topk_with_score_function(
        low, 2, False, None, None, None, "sigmoid", None
    )
    assert probs.dtype == torch.bfloat16
    _, scores = router.fused_compute_score_for_moe_aux_loss(low, 2, "softmax")
    assert scores.dtype == torch.float32
    probs.sum().backward()
    assert low.grad.dtype == torch.bfloat16


def test_very_negative_logits_have_finite_gradients():
    logits = torch.tensor([[-200.0, -200.0, 1.0, 2.0]], requires_grad=True)
    probs, _ = router.fused_topk_with_score_function(
        logits, 4, False, None, None, None, "sqrtsoftplus", None
    )
    probs[0, 0].backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"score_function": "relu"}, "score_function must be one of softmax, sigmoid"),
        ({"topk": 9}, "topk must be an integer from 1 to 8"),
        ({"num_groups": 3, "group_topk": 1}, "8 experts in num_groups=3"),
        ({"expert_bias": torch.zeros(8)}, "expert_bias is given with score_function='softmax'"),
        ({"routing_map_format": "bits"}, "routing_map_format must be a RoutingMapFormat"),
        ({"qb_histogram": torch.zeros(1)}, "qb_histogram must be None"),
        ({"logits": torch.zeros(2, 8, dtype=torch.float64)}, "logits must be a tensor in FP32"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(logits, changed, message):
    arguments = {
        "logits": logits,
        "topk": 2,
        "use_pre_softmax": False,
        "num_groups": None,
        "group_topk": None,
        "scaling_factor": None,
        "score_function": "softmax",
        "expert_bias": None,
    }
    with pytest.raises(telens.UsageError, match=message):
        router.fused_topk_with_score_function(**arguments | changed)
