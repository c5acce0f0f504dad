"""Compares token ids with the previous batch, with the labels, and with what attention can see."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from telens import _C
from telens.attach.attention import is_causal_bias, keep_scriptable, replace_function
from telens.attach.training import in_backward

__all__ = ["BatchWatch"]

_SAMPLE = 16384  # elements of a batch in its digest
_MULTIPLIER = 6364136223846793005  # of Knuth's MMIX generator, modulo 2**64
_IGNORED = -100  # the default ignore_index of cross_entropy

# A label is compared with the token at its own position and with the next two.
_OFFSETS = (0, 1, 2)
_MIN_LABELS = 64
_MIN_SHARE = 0.95  # of labels that equal the token at the offset
_MAX_OTHER_SHARE = 0.5  # a text that repeats one token fits every offset

# A bias that hides a position is -inf, or at least as low as -1e4. ALiBi subtracts at most 1 from
# the logit of an adjacent position.
_HIDDEN = -100.0


class BatchWatch:
    """Records numbers about token ids and labels, as scalars of the run.

    In each measured iteration:

    - ``repeated_batches%``: share of the iterations since the last measurement whose token ids, of
      all embeddings, equal those of the previous iteration.
    - ``label_offset``: 0, 1 or 2 if labels of ``cross_entropy`` are the token ids that many
      positions later. Next-token prediction has 1. Not recorded if labels are something else.
    - ``visible_labels%``: share of the labels whose next position every attention of the forward
      can see. Only calls of ``scaled_dot_product_attention`` are known.

    Parameters
    ----------
    guard
        wraps each hook
    is_due
        returns True if the running iteration is measured
    """

    def __init__(self, guard: Callable[[Callable], Callable], is_due: Callable[[], bool]) -> None:
        self._is_due = is_due
        self._digest: torch.Tensor | None = None  # of the running iteration
        self._previous: tuple[int, torch.Tensor] | None = None  # iteration and its digest
        self._repeats: list[torch.Tensor] = []  # since the last measurement
        self._tokens: dict[str, torch.Tensor] = {}  # of the running forward, by embedding
        # For the running forward, by sequence length: whether all attentions see the next position,
        # bool [batch or 1, length - 1]; None if this is unknown.
        self._visible: dict[int, torch.Tensor | None] = {}
        # By embedding: labels that equal the token at each offset, labels that have such a token,
        # labels, and labels whose next position is visible.
        self._sums: dict[str, torch.Tensor] = {}
        self._removed = False
        original = self._original = torch.nn.functional.cross_entropy
        note = guard(self._note_labels)

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if not (torch.compiler.is_compiling() or self._removed):
                target = args[1] if len(args) > 1 else kwargs.get("target")
                note(target, kwargs.get("ignore_index", _IGNORED))
            return original(*args, **kwargs)

        self._watched = watched
        keep_scriptable(watched, original)
        replace_function(original, watched)

    def remove(self) -> None:
        self._removed = True  # another library may have kept the replacement
        replace_function(self._watched, self._original)

    @torch.no_grad()
    def add_tokens(self, embedding: str, inputs: Iterable[Any]) -> None:
        """Notes the token ids of an embedding's forward."""
        ids = next((each for each in inputs if _is_integer(each) and each.numel() > 0), None)
        if ids is None:
            return
        digest = _digest_of(ids)
        known = self._digest
        self._digest = digest if known is None else known + digest.to(known.device)
        if self._is_due():
            if embedding in self._tokens:  # another forward begins
                self._tokens.clear()
                self._visible.clear()
            self._tokens[embedding] = ids

    @torch.no_grad()
    def add_attention(self, arguments: dict[str, Any]) -> None:
        """Notes whether an attention sees the next position."""
        query, key = arguments["query"], arguments["key"]
        if not self._tokens or query.is_nested or not 2 <= query.size(-2) == key.size(-2):
            return
        length = query.size(-2)
        visible = _sees_next(arguments, length)
        if length in self._visible:
            visible = _both(self._visible[length], visible)
        self._visible[length] = visible

    @torch.no_grad()
    def _note_labels(self, target: Any, ignored: int) -> None:
        if not self._tokens or not _is_integer(target) or in_backward():
            return
        for embedding, ids in self._tokens.items():
            visible = self._visible.get(ids.size(-1))
            sums = _compare(ids, target, ignored, visible)
            if sums is not None:
                known = self._sums.get(embedding)
                self._sums[embedding] = sums if known is None else known + sums.to(known.device)

    def end_iteration(self) -> None:
        """Records the numbers if the iteration is measured."""
        self._tokens.clear()
        self._visible.clear()
        digest, self._digest = self._digest, None
        sums, self._sums = self._sums, {}
        if not _C.debug.is_initialized():
            return
        iteration = _C.debug.iteration()
        if digest is not None:
            if self._previous is not None and self._previous[0] == iteration - 1:
                self._repeats.append(self._previous[1].to(digest.device) == digest)
            self._previous = (iteration, digest)
        if not self._is_due():
            return
        repeats, self._repeats = self._repeats, []
        if repeats:
            share = torch.stack([each.to(repeats[0].device) for each in repeats]).float().mean()
            _C.debug.record("repeated_batches%", 100 * float(share))
        for each in sums.values():
            if _record_labels(each.tolist()):
                break  # other embeddings of the same ids


def _is_plain(value: Any) -> bool:
    """Returns False for subclasses such as DTensor, and inside transforms such as vmap."""
    if type(value) is not torch.Tensor or value.is_nested:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(value)


def _is_integer(value: Any) -> bool:
    return _is_plain(value) and value.dtype in (torch.int32, torch.int64)


def _digest_of(ids: torch.Tensor) -> torch.Tensor:
    """Returns an integer that depends on the elements and their order."""
    flat = ids.reshape(-1)
    flat = flat[:: max(1, flat.numel() // _SAMPLE)].long()
    places = torch.arange(1, flat.numel() + 1, device=flat.device)
    mixed = (flat + places * _MULTIPLIER) * _MULTIPLIER
    return (mixed ^ (mixed >> 29)).sum()


def _both(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    if a is None or b is None or (a.size(0) != b.size(0) and 1 not in (a.size(0), b.size(0))):
        return None
    return a.to(b.device) & b


def _sees_next(arguments: dict[str, Any], length: int) -> torch.Tensor | None:
    """Returns bool [batch or 1, length - 1]: whether any head sees the next position.

    Returns None if the mask has an unknown form.
    """
    mask = arguments.get("attn_mask")
    device = arguments["query"].device
    if arguments.get("is_causal") or is_causal_bias(mask):
        return torch.zeros(1, length - 1, dtype=torch.bool, device=device)
    if mask is None:
        return torch.ones(1, length - 1, dtype=torch.bool, device=device)
    if not _is_plain(mask) or mask.dim() > 4:
        return None
    mask = mask.detach()
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    # A mask with one row is for all queries, as for padding.
    following = mask.diagonal(1, -2, -1) if mask.size(-2) == length else mask[..., 0, 1:]
    seen = following if following.dtype == torch.bool else following > _HIDDEN
    return seen.any(1)


def _compare(
    ids: torch.Tensor, target: torch.Tensor, ignored: int, visible: torch.Tensor | None
) -> torch.Tensor | None:
    """Returns the sums of one call of cross_entropy; None if the shapes do not fit.

    [equal at offset 0, 1, 2, comparable at offset 0, 1, 2, labels with known visibility, visible
    labels]. A loss may skip the last positions of each sequence.
    """
    if ids.dim() != 2 or target.numel() % ids.size(0) != 0:
        return None
    batch, length = ids.shape
    places = target.numel() // batch
    if not length - max(_OFFSETS) <= places <= length:
        return None
    labels = target.detach().reshape(batch, places).to(ids.device)
    counts = (labels != ignored) & (labels >= 0)
    equal, comparable = [], []
    for offset in _OFFSETS:
        width = min(places, length - offset)
        counted = counts[:, :width]
        later = ids[:, offset : offset + width]
        equal.append(((labels[:, :width] == later) & counted).sum())
        comparable.append(counted.sum())
    known = seen = torch.zeros_like(equal[0])
    if visible is not None and visible.size(0) in (1, batch):
        width = min(places, length - 1)
        known = counts[:, :width].sum()
        seen = (counts[:, :width] & visible[:, :width].to(ids.device)).sum()
    return torch.stack([*equal, *comparable, known, seen])


def _record_labels(sums: list[int]) -> bool:
    """Records the offset if the labels have one. Returns whether they do."""
    number = len(_OFFSETS)
    equal, comparable, (known, seen) = sums[:number], sums[number : 2 * number], sums[2 * number :]
    if min(comparable) < _MIN_LABELS:
        return False
    shares = [a / b for a, b in zip(equal, comparable, strict=True)]
    best = max(_OFFSETS, key=lambda offset: shares[offset])
    others = max(share for offset, share in enumerate(shares) if offset != best)
    if shares[best] < _MIN_SHARE or others > _MAX_OTHER_SHARE:
        return False
    _C.debug.record("label_offset", float(best))
    if known > 0:
        _C.debug.record("visible_labels%", 100 * seen / known)
    return True
