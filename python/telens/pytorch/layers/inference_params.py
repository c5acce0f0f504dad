"""Keys and values of earlier tokens, kept for generation: ``InferenceParams``."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from telens import _C
from telens._names import among, refusal, rejects_bools
from telens.common.field_types import check_sizes, is_integer
from telens.pytorch.layers.kv_cache import (
    KVCacheManager,
    NonPagedKVCacheManager,
    PagedKVCacheManager,
)

__all__ = ["InferenceParams"]

_FORMATS = ["sbhd", "bshd", "thd"]


class InferenceParams:
    """Caches of keys and values for generation: one cache per layer, for changing batches.

    Before each iteration, ``pre_step`` receives the number of new tokens of each sequence, in the
    order of the batch. The model then runs on the new tokens only, with ``inference_params=``. In
    sbhd and bshd, padding follows the new tokens of shorter sequences. In thd, the new tokens of
    the batch are packed; ``cu_seqlens_q_padded`` has the start of each sequence if there are gaps.
    A sequence that a step does not name has ended, and its memory is reused.

    ``cache_manager.cache`` has the keys and values by layer number (kv_cache.py).

    Parameters
    ----------
    max_batch_size, max_sequence_length
        largest number of sequences at a time, and of tokens in a sequence
    num_heads_kv, head_dim_k, head_dim_v
        sizes of keys and values; the default of head_dim_v is head_dim_k
    dtype
        dtype of the caches
    is_paged, total_num_pages, page_size
        True: caches consist of pages of page_size tokens, allocated as sequences grow, instead of
        max_sequence_length tokens per sequence
    max_ctx_len, qkv_format
        no effect: tensors have a length and a format
    custom_cache_manager
        a subclass of ``attention.inference.KVCacheManager`` that stores the caches. If it is None,
        ``PagedKVCacheManager`` or ``NonPagedKVCacheManager``
    device
        device of the caches; if it is None, the device of the first keys

    Raises UsageError for missing or invalid sizes.
    """

    @rejects_bools
    def __init__(
        self,
        max_batch_size: int,
        max_sequence_length: int,
        num_heads_kv: int | None = None,
        head_dim_k: int | None = None,
        dtype: torch.dtype | None = None,
        head_dim_v: int | None = None,
        is_paged: bool = False,
        total_num_pages: int | None = None,
        page_size: int | None = None,
        max_ctx_len: int | None = None,
        qkv_format: str = "bshd",
        custom_cache_manager: type[KVCacheManager] | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        if None in (num_heads_kv, head_dim_k, dtype):
            raise _C.UsageError("InferenceParams: num_heads_kv, head_dim_k and dtype are needed")
        among("InferenceParams", "qkv_format", qkv_format, _FORMATS)
        if is_paged and (page_size is None or total_num_pages is None):
            raise _C.UsageError("InferenceParams: is_paged needs page_size and total_num_pages")
        pages = {"page_size": page_size, "total_num_pages": total_num_pages} if is_paged else {}
        check_sizes(
            "InferenceParams",
            max_batch_size=max_batch_size,
            max_sequence_length=max_sequence_length,
            num_heads_kv=num_heads_kv,
            head_dim_k=head_dim_k,
            **pages,
        )
        for name, value in (("page_size", page_size), ("total_num_pages", total_num_pages)):
            if is_paged and value < 1:
                raise refusal("InferenceParams", name, "at least 1", value)
        self.max_batch_size = max_batch_size
        self.max_sequence_length = max_sequence_length
        self.num_heads_kv = num_heads_kv
        self.head_dim_k = head_dim_k
        self.head_dim_v = head_dim_k if head_dim_v is None else head_dim_v
        self.dtype = dtype
        self.is_paged = is_paged
        # A cache that is not paged has one page for each sequence.
        self.page_size = page_size if is_paged else max_sequence_length
        self.total_num_pages = total_num_pages if is_paged else max_batch_size
        manager = custom_cache_manager or (
            PagedKVCacheManager if is_paged else NonPagedKVCacheManager
        )
        if not (isinstance(manager, type) and issubclass(manager, KVCacheManager)):
            expected = "None, or a subclass of attention.inference.KVCacheManager"
            raise refusal("InferenceParams", "custom_cache_manager", expected, manager)
        self.cache_manager = manager(
            total_num_pages=self.total_num_pages,
            page_size=self.page_size,
            num_heads=num_heads_kv,
            head_dim_k=head_dim_k,
            dtype=dtype,
            head_dim_v=self.head_dim_v,
            device=device,
        )
        # Negative numbers for modules without a layer number.
        self._own_numbers = itertools.count(-1, -1)
        self._unnumbered: weakref.WeakKeyDictionary[torch.nn.Module, int] = (
            weakref.WeakKeyDictionary()
        )
        self.reset()

    def reset(self) -> None:
        """Forgets all sequences; the memory stays."""
        self.sequences: OrderedDict[Any, int] = OrderedDict()
        self.sequences_pre_step: OrderedDict[Any, int] = OrderedDict()
        self.cache_manager.reset()
        self._places: tuple[torch.Tensor, ...] | None = None
        self._modules: dict[int, weakref.ref[torch.nn.Module]] = {}

    def layer_number(self, attention: torch.nn.Module) -> int:
        """Returns the number under which an attention's cache is stored: its ``layer_number``, if
        it has one.

        Raises UsageError (a RuntimeError) for a number that another attention already uses.
        """
        number = getattr(attention, "layer_number", None)
        if number is None:
            if attention not in self._unnumbered:
                self._unnumbered[attention] = next(self._own_numbers)
            return self._unnumbered[attention]
        known = self._modules.setdefault(number, weakref.ref(attention))()
        if known is None:
            self._modules[number] = weakref.ref(attention)
        elif known is not attention:
            raise _C.UsageError(
                f"InferenceParams: two attentions have the layer_number {number}, and one would "
                "overwrite the other's keys and values; number them apart"
            )
        return number

    @rejects_bools
    def allocate_memory(self, layer_number: int, device: torch.device | None = None) -> None:
        """Allocates the caches of a layer; otherwise its first step does."""
        self.cache_manager.allocate_memory(layer_number, device)

    def pre_step(self, step_dict: Mapping[Any, int]) -> None:
        """Begins an iteration, given the number of new tokens per sequence, in the order of the
        batch."""
        for name, count in step_dict.items():
            if not is_integer(count) or count < 0:
                raise _C.UsageError(
                    f"InferenceParams.pre_step: sequence {name!r} has {count} new tokens; expected "
                    "0 or more"
                )
        if len(step_dict) > self.max_batch_size:
            raise _C.UsageError(
                f"InferenceParams.pre_step: {len(step_dict)} sequences; max_batch_size is "
                f"{self.max_batch_size}"
            )
        before = OrderedDict((name, self.sequences.get(name, 0)) for name in step_dict)
        after = OrderedDict((name, before[name] + count) for name, count in step_dict.items())
        longest = max(after.values(), default=0)
        if longest > self.max_sequence_length:
            raise _C.UsageError(
                f"InferenceParams.pre_step: a sequence of {longest} tokens; max_sequence_length is "
                f"{self.max_sequence_length}"
            )
        after = self.cache_manager.pre_step(step_dict)
        self.sequences_pre_step, self.sequences = before, after
        self._places = None

    def get_seqlens_pre_step(self) -> torch.Tensor:
        """The sequences' lengths before the iteration, int32 [batch]."""
        return torch.tensor([*self.sequences_pre_step.values()], dtype=torch.int32)

    @rejects_bools
    def step(
        self, layer_number: int, new_k: torch.Tensor, new_v: torch.Tensor, qkv_format: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Caches the new keys and values of a layer; returns all keys and values of the batch.

        ``new_k``, ``new_v``: [seq, batch, heads, size] for sbhd; bshd; [tokens, heads, size] for
        thd, without gaps. Returns both as [batch, longest sequence, heads, size], 0 after a
        sequence's end. Gradients do not flow through the caches: UsageError for keys or values that
        require one.
        """
        among("InferenceParams.step", "qkv_format", qkv_format, _FORMATS)
        if torch.is_grad_enabled() and (new_k.requires_grad or new_v.requires_grad):
            raise _C.UsageError(
                "InferenceParams.step: keys or values want gradients, which the caches do not "
                "keep; run the model in torch.no_grad() or torch.inference_mode()"
            )
        if layer_number not in self.cache_manager.cache:
            self.allocate_memory(layer_number, new_k.device)
        new = [self._by_sequence(each, qkv_format) for each in (new_k, new_v)]
        self._check_batch(new)
        rows, behind, new_rows, sequence, place = self._places_on(new_k.device)
        kept = []
        with torch.no_grad():
            for pages, tensor in zip(self.cache_manager.cache[layer_number], new, strict=True):
                if not pages.is_contiguous():
                    raise _C.ShapeError(
                        f"InferenceParams.step: the cache of layer {layer_number} is not "
                        "contiguous, so tokens cannot be written to it; replace it by a contiguous "
                        "tensor"
                    )
                cache = pages.view(-1, *pages.shape[2:])
                cache[new_rows] = tensor[sequence, place].to(cache.dtype)
                kept.append(cache[rows].masked_fill_(behind, 0))
        return kept[0], kept[1]

    def _places_on(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Computes the locations of the iteration's tokens, once for all layers.

        Returns rows of the caches [batch, longest]; True after a sequence's end [batch, longest, 1,
        1]; then for each new token its row, its sequence in the batch and its position among the
        new tokens.
        """
        if self._places is None or self._places[0].device != device:
            before = self.get_seqlens_pre_step().long()[:, None]
            after = torch.tensor([*self.sequences.values()], dtype=torch.int64)[:, None]
            places = torch.arange(max(self.sequences.values(), default=0))
            owned = self.cache_manager.page_lists()
            most = max(map(len, owned), default=0)
            pages = torch.tensor(
                [each + [0] * (most - len(each)) for each in owned], dtype=torch.int64
            ).view(len(owned), most)
            rows = pages[:, places // self.page_size] * self.page_size + places % self.page_size
            sequence, place = ((places >= before) & (places < after)).nonzero(as_tuple=True)
            made = (
                rows, (places >= after)[:, :, None, None], rows[sequence, place], sequence,
                place - before[sequence, 0],
            )  # fmt: skip
            self._places = tuple(each.to(device) for each in made)
        return self._places

    def new_tokens(self) -> list[int]:
        """Returns the number of new tokens per sequence in this iteration."""
        return [length - self.sequences_pre_step[name] for name, length in self.sequences.items()]

    def _by_sequence(self, tensor: torch.Tensor, qkv_format: str) -> torch.Tensor:
        """Converts new keys or values from a format to [batch, longest, heads, size]."""
        if qkv_format == "thd":
            return PackedTokens(self.new_tokens(), tensor.device).unpack(tensor)
        return tensor.transpose(0, 1) if qkv_format == "sbhd" else tensor

    def _check_batch(self, tensors: list[torch.Tensor]) -> None:
        if not self.sequences:
            raise _C.UsageError("InferenceParams.step: no iteration has begun; call pre_step first")
        for name, tensor, size in zip(
            ("keys", "values"), tensors, (self.head_dim_k, self.head_dim_v), strict=True
        ):
            if tuple(tensor.shape[2:]) != (self.num_heads_kv, size):
                raise _C.ShapeError(
                    f"InferenceParams.step: {name} have {tensor.size(2)} heads of size "
                    f"{tensor.size(3)}; the caches were made for num_heads_kv {self.num_heads_kv} "
                    f"and a size of {size}"
                )
        new = tensors[0]
        counts = self.new_tokens()
        if new.size(0) != len(counts) or new.size(1) < max(counts, default=0):
            raise _C.ShapeError(
                f"InferenceParams.step: keys of {new.size(0)} sequences with {new.size(1)} "
                f"tokens; pre_step announced {counts}"
            )


class PackedTokens:
    """Converts between packed tokens (thd) and sequences padded to the longest one (bshd).

    ``starts``: the start of each sequence; None if there are no gaps.
    """

    def __init__(
        self, lengths: list[int], device: torch.device, starts: torch.Tensor | None = None
    ) -> None:
        count = torch.tensor(lengths, dtype=torch.int64, device=device)
        first = count.cumsum(0) - count if starts is None else starts.to(device, torch.int64)
        place = torch.arange(max(lengths, default=0), device=device)
        self._is_token = place < count[:, None]  # [batch, longest]
        self._rows = torch.where(self._is_token, first[: len(lengths), None] + place, 0)

    def unpack(self, tokens: torch.Tensor) -> torch.Tensor:
        """Converts [tokens, ...] to [batch, longest, ...]; padding is 0."""
        if tokens.size(0) == 0:
            return tokens.new_zeros((*self._rows.shape, *tokens.shape[1:]))
        padded = tokens[self._rows]
        return padded.masked_fill(
            ~self._is_token.view(*padded.shape[:2], *[1] * (padded.dim() - 2)), 0
        )

    def pack(self, padded: torch.Tensor, total: int) -> torch.Tensor:
        """Converts [batch, longest, ...] to [total, ...]; tokens of no sequence are 0."""
        tokens = padded.new_zeros((total, *padded.shape[2:]))
        tokens[self._rows[self._is_token]] = padded[self._is_token]
        return tokens

    def places(self, before: torch.Tensor, total: int) -> torch.Tensor:
        """Returns each token's position in its sequence, [total]; ``before`` tokens are cached."""
        place = torch.arange(self._rows.size(1), device=self._rows.device)
        return self.pack((before[:, None] + place).expand(self._rows.shape), total)


def call_with_cache(
    module: torch.nn.Module,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """A forward whose attention looks at all keys and values of ``inference_params``.

    ``module``: a DotProductAttention, MultiheadAttention or TransformerLayer, of which only the
    self attention is cached. ``forward``: the module's own, which a subclass may have overridden.
    """
    kwargs = dict(kwargs)
    owner = f"{type(module).__name__}.forward"
    params = kwargs.pop("inference_params")
    if not isinstance(params, InferenceParams):
        raise refusal(owner, "inference_params", "telens.pytorch.InferenceParams", params)
    if getattr(module, "attention_type", None) == "cross":
        raise _C.UsageError(
            f"{owner}: inference_params is for self attention; call cross attention, which gets "
            "the encoder's keys in each step, without it"
        )
    angles = kwargs.get("rotary_pos_emb")
    if angles is not None and getattr(module, "layer_type", None) == "decoder":
        raise _C.UsageError(
            f"{owner}: rotary_pos_emb of a decoder does not go with inference_params: its cross "
            "attention would take the new tokens' angles for the encoder's keys"
        )
    attention = getattr(module, "self_attention", module)
    core = getattr(attention, "core_attention", attention)
    number = params.layer_number(attention)
    if core is module:
        # No module around it would run a hook of it.
        args, kwargs, finish = _with_cached_keys(core, params, number, args, kwargs)
        return finish(forward(*args, **kwargs))
    if angles is not None:
        hidden = args[0] if args else kwargs["hidden_states"]
        pair = angles if isinstance(angles, tuple | list) else (angles, angles)
        starts = kwargs.get("cu_seqlens_q_padded")
        kwargs["rotary_pos_emb"] = tuple(
            _angles_of_new(each, params, hidden, attention.qkv_format, starts) for each in pair
        )
    finishes: list[Callable[[Any], Any]] = []

    def use_cache(core: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        args, kwargs, finish = _with_cached_keys(core, params, number, args, kwargs)
        finishes.append(finish)
        return args, kwargs

    def finish_output(core: torch.nn.Module, args: Any, output: Any) -> Any:
        return finishes.pop()(output)

    before = core.register_forward_pre_hook(use_cache, with_kwargs=True)
    after = core.register_forward_hook(finish_output, prepend=True)
    try:
        return forward(*args, **kwargs)
    finally:
        before.remove()
        after.remove()


def _angles_of_new(
    angles: torch.Tensor,
    params: InferenceParams,
    hidden: torch.Tensor,
    qkv_format: str,
    starts: torch.Tensor | None,
) -> torch.Tensor:
    """Returns the angles for the new tokens' positions: [seq, batch, 1, channels], or [1, tokens,
    1, channels] for thd."""
    longest = max(params.sequences.values(), default=0)
    if angles.size(0) < longest:
        raise _C.ShapeError(
            f"rotary_pos_emb has {angles.size(0)} positions, and a sequence of inference_params "
            f"{longest} tokens; make angles of as many"
        )
    first = params.get_seqlens_pre_step().to(angles.device, torch.int64)
    if qkv_format == "thd":
        packed = PackedTokens(params.new_tokens(), angles.device, starts)
        return angles[packed.places(first, hidden.size(0))].squeeze(2).squeeze(1)[None, :, None]
    count = hidden.size(0 if qkv_format == "sbhd" else 1)
    places = torch.arange(count, device=angles.device)[:, None] + first
    # Padding after the new tokens may have any angles.
    return angles[places.clamp_max(angles.size(0) - 1)].squeeze(3)


def _with_cached_keys(
    core: torch.nn.Module, params: InferenceParams, number: int, args: tuple, kwargs: dict
) -> tuple[tuple, dict, Callable[[Any], Any]]:
    """Returns the arguments of a DotProductAttention with all keys and values instead of the new
    ones, and a function that converts its result to the format of the call."""
    names = ("query_layer", "key_layer", "value_layer", "attention_mask", "qkv_format")
    given = dict(zip(names, args, strict=False)) | kwargs
    query_format = given.get("qkv_format") or core.qkv_format
    mask = given.get("attn_mask_type") or core.attn_mask_type
    query, new_keys, new_values = (given[name] for name in names[:3])
    _check_lengths(params, given, mask)
    finish: Callable[[Any], Any] = _as_it_is
    if query_format == "thd":
        packed = PackedTokens(params.new_tokens(), query.device, given.get("cu_seqlens_q_padded"))
        total = query.size(0)
        query, new_keys, new_values = map(packed.unpack, (query, new_keys, new_values))
        keys, values = params.step(number, new_keys, new_values, "bshd")

        def finish(output: Any) -> Any:
            if isinstance(output, tuple):
                return packed.pack(output[0], total), *output[1:]
            return packed.pack(output, total)
    else:
        keys, values = params.step(number, new_keys, new_values, query_format)
    lengths = [
        torch.tensor(each, device=keys.device)[:, None]
        for each in (params.new_tokens(), [*params.sequences.values()])
    ]
    sizes = (query.size(0 if query_format == "sbhd" else 1), keys.size(1))
    masks = tuple(
        (torch.arange(size, device=keys.device) >= each)[:, None, None]
        for size, each in zip(sizes, lengths, strict=True)
    )
    if query_format == "sbhd":
        keys, values = keys.transpose(0, 1), values.transpose(0, 1)
    left = {
        name: value
        for name, value in given.items()
        if name not in names and not name.startswith(("cu_seqlens", "max_seqlen"))
    }
    changed = {
        "qkv_format": "bshd" if query_format == "thd" else query_format,
        "attention_mask": masks,
        "attn_mask_type": "padding_causal_bottom_right" if "causal" in mask else "padding",
    }
    return (query, keys.to(query.dtype), values.to(query.dtype)), left | changed, finish


def _as_it_is(output: Any) -> Any:
    return output


def _check_lengths(params: InferenceParams, given: dict[str, Any], mask: str) -> None:
    """Raises UsageError for a mask or cu_seqlens that contradict pre_step, whose lengths are used.
    Tensors on a GPU are not read, which would synchronize with it."""
    counts, whole = params.new_tokens(), [*params.sequences.values()]
    masks = given.get("attention_mask")
    masks = [masks] if isinstance(masks, torch.Tensor) else list(masks or ())
    wrong = mask == "arbitrary"
    for each in masks:
        if each.device.type == "cpu" and "padding" in mask and each.dim() in (2, 4):
            rows = each.bool() if each.dim() == 2 else each[:, 0, 0].bool()
            places = torch.arange(rows.size(-1))
            expected = [places >= torch.tensor(ends)[:, None] for ends in (counts, whole)]
            wrong = wrong or not any(torch.equal(rows, possible) for possible in expected)
    for name, ends in (("cu_seqlens_q", [counts]), ("cu_seqlens_kv", [counts, whole])):
        tensor = given.get(name)
        if tensor is not None and tensor.device.type == "cpu":
            found = tensor.diff().tolist()
            # Batches of a fixed size repeat the last sum.
            wrong = wrong or not any(
                found[: len(each)] == each and not any(found[len(each) :]) for each in ends
            )
    if wrong:
        raise _C.UsageError(
            "attention: with inference_params the lengths of sequences come from pre_step, "
            f"{counts} new tokens of {whole}; attention_mask or cu_seqlens differ, or "
            "attn_mask_type is arbitrary: omit them"
        )
