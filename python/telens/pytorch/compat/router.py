"""Functions of a mixture-of-experts router, which select the experts and weights of each token.

All are formulas in torch, computed in FP32 and differentiable in logits and probabilities.
"""

from __future__ import annotations

import enum
from typing import Any

import torch

from telens import _C
from telens._names import among, refusal, rejects_bools

__all__ = [
    "RoutingMapFormat",
    "fused_compute_score_for_moe_aux_loss",
    "fused_moe_aux_loss",
    "fused_topk_with_score_function",
]

# Keeps the normalization finite if all scores of a token are 0.
_EPSILON = 1e-20
_SCORE_FUNCTIONS = ["softmax", "sigmoid", "sqrtsoftplus"]


class RoutingMapFormat(enum.IntEnum):
    """Layouts of a routing map [tokens, experts]: bool, or bits packed into uint8, the lowest bit
    of a byte first."""

    BYTEMAP = 0
    BITMAP_U8 = 1


@rejects_bools
def fused_topk_with_score_function(
    logits: torch.Tensor,
    topk: int,
    use_pre_softmax: bool,
    num_groups: int | None,
    group_topk: int | None,
    scaling_factor: float | None,
    score_function: str,
    expert_bias: torch.Tensor | None,
    routing_map_format: str | RoutingMapFormat | int = RoutingMapFormat.BYTEMAP,
    topk_indices: torch.Tensor | None = None,
    qb_histogram: torch.Tensor | None = None,
    qb_bin_bounds: torch.Tensor | None = None,
    qb_histogram_mode: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Selects experts for each token and computes their probabilities.

    Parameters
    ----------
    logits
        [..., experts] in FP32, BF16 or FP16
    topk
        experts of a token
    use_pre_softmax
        softmax over all experts before the selection; False: over the selected ones, after it
    num_groups, group_topk
        experts are divided into groups; only those of the ``group_topk`` groups are selected whose
        ``topk / group_topk`` largest scores have the largest sum. None or 0: from all experts
    scaling_factor
        the probabilities are multiplied by it; None: 1
    score_function
        ``"softmax"``; ``"sigmoid"`` or ``"sqrtsoftplus"``, whose selected scores are divided by
        their sum if ``topk`` is above 1
    expert_bias
        [experts], added to the scores for the selection only; not for softmax
    routing_map_format
        ``RoutingMapFormat``, or its name in lower case
    topk_indices
        integers [tokens, topk]: receives the selected experts, and is returned as the routing map
    qb_histogram, qb_bin_bounds, qb_histogram_mode
        must be None: histograms for quantile balancing are not supported

    Returns
    -------
    (probabilities [..., experts] in the dtype of the logits, 0 for experts that are not selected;
    routing map)
    """
    owner = "fused_topk_with_score_function"
    among(owner, "score_function", score_function, _SCORE_FUNCTIONS)
    _check_topk(owner, topk, logits)
    bits = _is_bitmap(owner, routing_map_format)
    for name, value in (
        ("qb_histogram", qb_histogram),
        ("qb_bin_bounds", qb_bin_bounds),
        ("qb_histogram_mode", qb_histogram_mode),
    ):
        if value is not None:
            raise refusal(owner, name, "None, because quantile balancing is not supported", value)
    if expert_bias is not None and score_function == "softmax":
        raise _C.UsageError(
            f"{owner}: expert_bias is given with score_function='softmax'; expected 'sigmoid' or "
            "'sqrtsoftplus': a bias only shifts scores of independent experts"
        )
    values = logits.float()
    late_softmax = score_function == "softmax" and not use_pre_softmax
    scores = values if late_softmax else _scores(values, score_function)
    with torch.no_grad():
        ranked = scores if expert_bias is None else scores + expert_bias.float()
        chosen = _select(owner, ranked, topk, num_groups, group_topk)
    probabilities = scores.gather(-1, chosen)
    if late_softmax:
        probabilities = probabilities.softmax(-1)
    elif score_function != "softmax" and topk > 1:
        probabilities = probabilities / (probabilities.sum(-1, keepdim=True) + _EPSILON)
    if scaling_factor:
        probabilities = probabilities * scaling_factor
    spread = torch.zeros_like(values).scatter(-1, chosen, probabilities).to(logits.dtype)
    if topk_indices is not None:
        with torch.no_grad():
            topk_indices.copy_(chosen.reshape(topk_indices.shape))
        return spread, topk_indices
    return spread, _routing_map(chosen, logits, bits)


@rejects_bools
def fused_compute_score_for_moe_aux_loss(
    logits: torch.Tensor,
    topk: int,
    score_function: str,
    routing_map_format: str | RoutingMapFormat | int = RoutingMapFormat.BYTEMAP,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes normalized scores for all experts and the map of the ``topk`` largest.

    Parameters are those of ``fused_topk_with_score_function``.

    Returns
    -------
    (routing map, scores [..., experts] in FP32, whose sum over the experts is 1)
    """
    owner = "fused_compute_score_for_moe_aux_loss"
    among(owner, "score_function", score_function, _SCORE_FUNCTIONS)
    _check_topk(owner, topk, logits)
    bits = _is_bitmap(owner, routing_map_format)
    scores = _scores(logits.float(), score_function)
    if score_function != "softmax":
        scores = scores / (scores.sum(-1, keepdim=True) + _EPSILON)
    chosen = scores.detach().topk(topk, dim=-1).indices
    return _routing_map(chosen, logits, bits), scores


@rejects_bools
def fused_moe_aux_loss(
    probs: torch.Tensor,
    tokens_per_expert: torch.Tensor,
    total_num_tokens: int | torch.Tensor,
    num_experts: int,
    topk: int,
    coeff: float,
) -> torch.Tensor:
    """Computes Switch Transformer's load-balancing loss (https://arxiv.org/abs/2101.03961).

    loss = coeff * num_experts / (topk * total_num_tokens^2)
    * sum over experts of (tokens of the expert * sum over tokens of its probability)

    Parameters
    ----------
    probs
        [tokens, experts], or several sequences next to each other: [tokens, sequences * experts]
    tokens_per_expert
        [experts] or [sequences * experts]; no gradient
    total_num_tokens
        tokens that ``tokens_per_expert`` counts; an integer or a tensor of one element

    Returns
    -------
    a scalar in the dtype of ``probs``
    """
    if num_experts <= 0 or probs.size(-1) % num_experts != 0:
        raise _C.ShapeError(
            f"fused_moe_aux_loss: probs has {probs.size(-1)} columns; expected a multiple of "
            f"num_experts={num_experts}"
        )
    loads = tokens_per_expert.detach().float()
    weighted = (probs.float().sum(0) * loads).sum()
    factor = num_experts * coeff / topk / total_num_tokens / total_num_tokens
    return (weighted * factor).to(probs.dtype)


def _scores(values: torch.Tensor, score_function: str) -> torch.Tensor:
    if score_function == "softmax":
        return values.softmax(-1)
    if score_function == "sigmoid":
        return values.sigmoid()
    softplus = torch.nn.functional.softplus(values)
    # The root's slope is infinite at 0, which softplus reaches below about -104.
    positive = softplus > 0
    return torch.where(positive, softplus, 1.0).sqrt() * positive


def _select(
    owner: str, scores: torch.Tensor, topk: int, num_groups: int | None, group_topk: int | None
) -> torch.Tensor:
    """Returns the experts selected for each token, [..., topk]."""
    if not group_topk:
        return scores.topk(topk, dim=-1).indices
    experts = scores.size(-1)
    if (
        not num_groups
        or experts % num_groups
        or topk % group_topk
        or group_topk > num_groups
        or topk // group_topk > experts // num_groups
    ):
        raise _C.UsageError(
            f"{owner}: {experts} experts in num_groups={num_groups}, topk={topk} of "
            f"group_topk={group_topk} groups; expected groups of equal size, topk a multiple of "
            "group_topk, and at least topk / group_topk experts in a group"
        )
    groups = scores.unflatten(-1, (num_groups, experts // num_groups))
    sums = groups.topk(topk // group_topk, dim=-1).values.sum(-1)
    kept = torch.zeros_like(sums, dtype=torch.bool)
    kept.scatter_(-1, sums.topk(group_topk, dim=-1).indices, True)
    masked = groups.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(-2)
    return masked.topk(topk, dim=-1).indices


def _routing_map(chosen: torch.Tensor, logits: torch.Tensor, bits: bool) -> torch.Tensor:
    chosen_map = torch.zeros_like(logits, dtype=torch.bool, requires_grad=False)
    chosen_map.scatter_(-1, chosen, True)
    if not bits:
        return chosen_map
    padded = torch.nn.functional.pad(chosen_map, (0, -chosen_map.size(-1) % 8))
    places = 2 ** torch.arange(8, device=logits.device)
    return (padded.unflatten(-1, (-1, 8)) * places).sum(-1).to(torch.uint8)


def _is_bitmap(owner: str, routing_map_format: Any) -> bool:
    names = {each.name.lower(): each for each in RoutingMapFormat}
    known = names.get(routing_map_format, routing_map_format)
    if isinstance(known, bool) or known not in tuple(RoutingMapFormat):
        expected = f"a RoutingMapFormat, or one of {', '.join(names)}"
        raise refusal(owner, "routing_map_format", expected, routing_map_format)
    return known == RoutingMapFormat.BITMAP_U8


def _check_topk(owner: str, topk: int, logits: torch.Tensor) -> None:
    if logits.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise refusal(owner, "logits", "a tensor in FP32, BF16 or FP16", logits.dtype)
    if isinstance(topk, bool) or not isinstance(topk, int) or not 1 <= topk <= logits.size(-1):
        raise refusal(owner, "topk", f"an integer from 1 to {logits.size(-1)} experts", topk)
