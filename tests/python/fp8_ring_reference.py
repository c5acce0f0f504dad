"""FP8 attention whose keys travel around a ring of ranks, in FP64, with bounds for results in FP32.

Each step casts its own operands: see core/modules/attention/fp8_ring_attention.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from context_helpers import chunks_of
from fp8_attention_reference import (
    EXP,
    ULP,
    Casts,
    Expected,
    Known,
    by_head,
    over_groups,
    product,
    softmax,
)  # fmt: skip


class StepCasts(Casts):
    """The casts of several steps, whose amaxes are kept in one history."""

    def scale_of(self, name: str, *parts: Known) -> tuple[float, float]:
        before = self.amaxes.get(name, (0.0, 0.0))
        scale = super().scale_of(name, *parts)
        self.amaxes[name] = tuple(map(max, before, self.amaxes[name]))
        return scale


def total(parts: list[Known]) -> Known:
    """The sum of the parts in FP32, in any order."""
    size = sum(np.abs(part.mid) + part.rad for part in parts)
    return Known(sum(x.mid for x in parts), sum(x.rad for x in parts) + len(parts) * ULP * size)


@dataclass
class Step:
    """The queries of one rank with the keys of another."""

    owner: int
    rows: slice  # among the rank's queries
    keys: slice  # among the owner's keys
    allowed: np.ndarray | None


@dataclass
class Coded:
    """The data of one rank: codes of query, key and value, and the inverse of their scale."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    inverse: float


def steps_of(rank: int, ranks: int, length: int, causal: bool) -> list[Step]:
    own, half = length // ranks, length // ranks // 2
    found = []
    for i in range(ranks):
        owner = (rank - i) % ranks
        rows = slice(half if causal and owner > rank else 0, own)
        keys = slice(0, half if causal and owner < rank else own)
        allowed = None
        if causal and owner == rank:
            places = np.array(chunks_of(rank, ranks, length))
            allowed = places[:, None] >= places[None, :]
        found.append(Step(owner, rows, keys, allowed))
    return found


def lse_of(p: Known) -> Known:
    """The logarithm of the sum of the exponentials of a step."""
    largest = p.mid.max(-1, keepdims=True)
    total = np.exp(p.mid - largest).sum(-1, keepdims=True)
    finite = np.where(np.isfinite(p.mid), p.rad + 2 * ULP * np.abs(p.mid), 0)
    off = finite.max(-1, keepdims=True) + (p.mid.shape[-1] + 4) * ULP + 2 * EXP
    mid = np.log(total) + largest
    return Known(mid, off + 4 * ULP * (np.abs(mid) + np.abs(np.log(total))))


class Ring:
    """query, gradient [batch, heads, seq, size], key and value [batch, groups, seq, size]."""

    def __init__(
        self,
        tensors: list[np.ndarray],
        causal: bool,
        casts: list[Casts],
        sums_output_codes: bool = False,
    ) -> None:
        self.sums_output_codes = sums_output_codes
        query, key, value, self.gradient = tensors
        self.causal, self.casts, self.ranks = causal, casts, len(casts)
        self.length, self.heads, self.groups = query.shape[2], query.shape[1], key.shape[1]
        self.scale = 1 / np.sqrt(query.shape[-1])
        self.places = [chunks_of(r, self.ranks, self.length) for r in range(self.ranks)]
        self.coded = []
        for rank, here in enumerate(self.places):
            own = [Known(x[:, :, here]) for x in (query, key, value)]
            (q, inverse), (k, _), (v, _) = casts[rank]("qkv", *own)
            self.coded.append(Coded(q.mid, k.mid, v.mid, inverse))

    def run(self, delayed: bool) -> Expected:
        """The whole result in natural order."""
        outputs, queries = [], []
        keys: list[list[Known]] = [[] for _ in range(self.ranks)]
        values: list[list[Known]] = [[] for _ in range(self.ranks)]
        for rank in range(self.ranks):
            steps, own = self.attend(rank, delayed)
            outputs.append(own["output"])
            queries.append(self.differentiate(rank, steps, own, delayed, keys, values))
        made = [outputs, queries, list(map(total, keys)), list(map(total, values))]
        return Expected(*map(self.in_order, made), bias=None, sink=None)

    def in_order(self, parts: list[Known]) -> Known:
        back = np.argsort(np.concatenate(self.places))
        mid = np.concatenate([part.mid for part in parts], 2)[:, :, back]
        return Known(mid, np.concatenate([part.rad for part in parts], 2)[:, :, back])

    def scores(self, rank: int, step: Step) -> Known:
        q, k = self.coded[rank], self.coded[step.owner]
        factor = np.float32(q.inverse) * np.float32(k.inverse) * np.float32(self.scale)
        keys = by_head(k.key[:, :, step.keys], self.heads)
        p = product(Known(q.query[:, :, step.rows]), keys.t).times(float(factor))
        if step.allowed is None:
            return p
        return Known(np.where(step.allowed, p.mid, -np.inf), np.where(step.allowed, p.rad, 0))

    def attend(self, rank: int, delayed: bool) -> tuple[list[tuple[Step, Known, tuple]], dict]:
        casts, own = self.casts[rank], self.coded[rank]
        steps, parts = [], []
        for step in steps_of(rank, self.ranks, self.length, self.causal):
            p = self.scores(rank, step)
            weights, _ = softmax(p, None)
            scale = casts.scale_of("s", weights)
            s8 = casts.under("s", weights, scale)
            of = self.coded[step.owner]
            inverse = float(np.float32(1) / np.float32(scale[0]))
            values = by_head(of.value[:, :, step.keys], self.heads)
            out = product(s8, values).times(inverse * of.inverse)
            if delayed:
                ((codes, o_inverse),) = casts("o", out)
                out = codes.times(o_inverse)
            steps.append((step, p, scale))
            parts.append((step.rows, out, lse_of(p)))
        shape = own.query.shape[:3]
        merged = self.merge(parts, (*shape, own.value.shape[-1]))
        known = merged["output"].rounded(ULP)
        if delayed or self.sums_output_codes:
            ((codes, o_inverse),) = casts("o", merged["output"])
            known = codes.times(o_inverse)
        return steps, merged | {"of delta": known}

    def merge(self, parts: list[tuple[slice, Known, Known]], shape: tuple[int, ...]) -> dict:
        lse = np.full((*shape[:3], 1), -np.inf)
        worst = np.zeros_like(lse)
        for rows, _, each in parts:
            lse[:, :, rows] = np.logaddexp(lse[:, :, rows], each.mid)
            worst[:, :, rows] = np.maximum(worst[:, :, rows], each.rad)
        merges = len(parts)
        rounding = merges * (4 * ULP * (np.abs(lse) + 1) + 2 * EXP)
        whole = Known(lse, worst + rounding)
        mid, rad, size = (np.zeros(shape) for _ in range(3))
        for rows, out, each in parts:
            weight = np.exp(each.mid - lse[:, :, rows])
            off = np.expm1(each.rad + whole.rad[:, :, rows] + rounding[:, :, rows])
            mid[:, :, rows] += weight * out.mid
            rad[:, :, rows] += weight * (out.rad + (np.abs(out.mid) + out.rad) * off)
            size[:, :, rows] += weight * np.abs(out.mid)
        return {"output": Known(mid, rad + (merges + 2) * ULP * size), "lse": whole}

    def differentiate(self, rank, steps, own, delayed, keys, values) -> Known:
        casts, here = self.casts[rank], self.coded[rank]
        ((do8, do_inverse),) = casts("do", Known(self.gradient[:, :, self.places[rank]]))
        out = own["of delta"]
        terms = np.abs(do8.mid * do_inverse)
        mid = (do8.mid * do_inverse * out.mid).sum(-1, keepdims=True)
        rad = terms * out.rad + (out.mid.shape[-1] + 6) * ULP * terms * (np.abs(out.mid) + out.rad)
        delta = Known(mid, rad.sum(-1, keepdims=True))
        of_query = Known(np.zeros(here.query.shape))
        for step, p, scale in steps:
            of = self.coded[step.owner]
            rows = step.rows
            s = self.weights(p, Known(own["lse"].mid[:, :, rows], own["lse"].rad[:, :, rows]))
            s8 = casts.under("s", s, scale)
            s_inverse = float(np.float32(1) / np.float32(scale[0]))
            row_do = Known(do8.mid[:, :, rows])
            k, v = (by_head(x[:, :, step.keys], self.heads) for x in (of.key, of.value))
            dv = over_groups(product(s8.t, row_do), self.groups).times(s_inverse * do_inverse)
            ds = product(row_do, v.t).times(do_inverse * of.inverse)
            inner = ds.mid - delta.mid[:, :, rows]
            inner_rad = ds.rad + delta.rad[:, :, rows] + 2 * ULP * np.abs(inner)
            dp = Known(s.mid * inner, s.rad * (np.abs(inner) + inner_rad) + s.mid * inner_rad)
            ((dp8, dp_inverse),) = casts("dp", dp.rounded(2 * ULP))
            dq = product(dp8, k).times(dp_inverse * of.inverse * self.scale)
            q = Known(here.query[:, :, rows])
            dk = over_groups(product(dp8.t, q), self.groups)
            dk = dk.times(dp_inverse * here.inverse * self.scale)
            if delayed:
                dq, dk, dv = (x.times(inverse) for x, inverse in casts("dqkv", dq, dk, dv))
            of_query = self.added(of_query, dq, rows)
            empty = np.zeros((*dk.mid.shape[:2], self.length // self.ranks))
            for into, part in ((keys, dk), (values, dv)):
                zero = Known(np.zeros((*empty.shape, part.mid.shape[-1])))
                into[step.owner].append(self.added(zero, part, step.keys))
        return of_query

    @staticmethod
    def weights(p: Known, lse: Known) -> Known:
        finite = np.isfinite(p.mid)
        mid = np.where(finite, np.exp(np.where(finite, p.mid, 0) - lse.mid), 0)
        size = np.abs(np.where(finite, p.mid, 0)) + np.abs(lse.mid)
        off = np.expm1(p.rad + lse.rad + 2 * ULP * size) + EXP
        return Known(mid, mid * off)

    @staticmethod
    def added(to: Known, part: Known, rows: slice) -> Known:
        mid, rad = to.mid.copy(), to.rad.copy()
        mid[:, :, rows] += part.mid
        rad[:, :, rows] += part.rad + 2 * ULP * (np.abs(mid[:, :, rows]) + part.rad)
        return Known(mid, rad)
