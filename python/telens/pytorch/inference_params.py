"""Keys and values of earlier tokens, kept for generation: ``InferenceParams``."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from telens import _C
from telens._names import among, refusal

__all__ = ["InferenceParams"]

_FORMATS = ["sbhd", "bshd"]


class InferenceParams:
    """Caches of keys and values, one of each layer, for sequences that come and go.

    Before each iteration ``pre_step`` is told how many new tokens each sequence has, in the order
    of the batch; then the model runs on the new tokens alone, with ``inference_params=``. New
    tokens of shorter sequences stand in front of padding. A sequence that a step does not name has
    ended, and its place is free.

    Parameters
    ----------
    max_batch_size, max_sequence_length
        how many sequences there are at once, and how long one gets
    num_heads_kv, head_dim_k, head_dim_v
        of the keys and values; head_dim_v None: as head_dim_k
    dtype
        of the caches
    is_paged, total_num_pages, page_size
        caches of pages of page_size tokens, which sequences take as they grow, in place of
        max_sequence_length tokens for each
    max_ctx_len, qkv_format
        taken, without effect: tensors tell
    device
        of the caches; None: that of the first keys
    """

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
        *,
        device: torch.device | str | None = None,
    ) -> None:
        if None in (num_heads_kv, head_dim_k, dtype):
            raise _C.UsageError("InferenceParams: num_heads_kv, head_dim_k and dtype are needed")
        among("InferenceParams", "qkv_format", qkv_format, [*_FORMATS, "thd"])
        if is_paged and (page_size is None or total_num_pages is None):
            raise _C.UsageError("InferenceParams: is_paged needs page_size and total_num_pages")
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
        self._device = device
        self._caches: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        # Numbers of modules that were made without one, below those of all others.
        self._own_numbers = itertools.count(-1, -1)
        self._unnumbered: weakref.WeakKeyDictionary[torch.nn.Module, int] = (
            weakref.WeakKeyDictionary()
        )
        self.reset()

    def reset(self) -> None:
        """Forgets all sequences; the memory stays."""
        self.sequences: OrderedDict[Any, int] = OrderedDict()
        self.sequences_pre_step: OrderedDict[Any, int] = OrderedDict()
        self._pages: dict[Any, list[int]] = {}
        self._free = list(range(self.total_num_pages))
        self._places: tuple[torch.Tensor, ...] | None = None
        self._modules: dict[int, weakref.ref[torch.nn.Module]] = {}

    def layer_number(self, attention: torch.nn.Module) -> int:
        """Under which an attention's keys and values are kept: its ``layer_number``, if it has one.

        Raises UsageError (a RuntimeError) for a number that another attention has already.
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

    def allocate_memory(self, layer_number: int, device: torch.device | None = None) -> None:
        """Makes the caches of a layer, which its first step does otherwise."""
        rows = self.total_num_pages * self.page_size
        self._caches[layer_number] = tuple(
            torch.zeros(
                rows, self.num_heads_kv, size, dtype=self.dtype, device=self._device or device
            )
            for size in (self.head_dim_k, self.head_dim_v)
        )

    def pre_step(self, step_dict: Mapping[Any, int]) -> None:
        """Begins an iteration: the new tokens of each sequence, in the order of the batch."""
        for name, count in step_dict.items():
            if count < 0:
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
        ended = self.sequences.keys() - after.keys()
        wanted = {
            name: -(-length // self.page_size) - len(self._pages.get(name, []))
            for name, length in after.items()
        }
        free = len(self._free) + sum(len(self._pages[name]) for name in ended)
        if sum(wanted.values()) > free:
            raise _C.UsageError(
                f"InferenceParams.pre_step: the sequences need {sum(wanted.values())} pages more, "
                f"and {free} of {self.total_num_pages} are free"
            )
        for name in ended:
            self._free += self._pages.pop(name)
        for name, count in wanted.items():
            self._pages.setdefault(name, []).extend(self._free.pop(0) for _ in range(count))
        self.sequences_pre_step, self.sequences = before, after
        self._places = None

    def get_seqlens_pre_step(self) -> torch.Tensor:
        """The sequences' lengths before the iteration, int32 [batch]."""
        return torch.tensor([*self.sequences_pre_step.values()], dtype=torch.int32)

    def step(
        self, layer_number: int, new_k: torch.Tensor, new_v: torch.Tensor, qkv_format: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keeps the new keys and values of a layer; returns all of the batch's.

        ``new_k``, ``new_v``: [seq, batch, heads, size] for sbhd; bshd. Returns both as [batch,
        longest sequence, heads, size], 0 behind a sequence's end. No gradient goes through the
        caches: UsageError for keys or values that want one.
        """
        among("InferenceParams.step", "qkv_format", qkv_format, _FORMATS)
        if torch.is_grad_enabled() and (new_k.requires_grad or new_v.requires_grad):
            raise _C.UsageError(
                "InferenceParams.step: keys or values want gradients, which the caches do not "
                "keep; run the model in torch.no_grad() or torch.inference_mode()"
            )
        if layer_number not in self._caches:
            self.allocate_memory(layer_number, new_k.device)
        new = [t.transpose(0, 1) if qkv_format == "sbhd" else t for t in (new_k, new_v)]
        self._check_batch(new)
        rows, behind, new_rows, sequence, place = self._places_on(new_k.device)
        kept = []
        with torch.no_grad():
            for cache, tensor in zip(self._caches[layer_number], new, strict=True):
                cache[new_rows] = tensor[sequence, place].to(cache.dtype)
                kept.append(cache[rows].masked_fill_(behind, 0))
        return kept[0], kept[1]

    def _places_on(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Where the iteration's tokens lie, computed once for all layers.

        (Rows of the caches [batch, longest]; True behind a sequence's end [batch, longest, 1, 1];
        then of each new token its row, its sequence in the batch and its place among the new.)
        """
        if self._places is None or self._places[0].device != device:
            before = self.get_seqlens_pre_step().long()[:, None]
            after = torch.tensor([*self.sequences.values()], dtype=torch.int64)[:, None]
            places = torch.arange(max(self.sequences.values(), default=0))
            owned = [self._pages[name] for name in self.sequences]
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
        counts = [
            after - before
            for before, after in zip(
                self.sequences_pre_step.values(), self.sequences.values(), strict=True
            )
        ]
        if new.size(0) != len(counts) or new.size(1) < max(counts, default=0):
            raise _C.ShapeError(
                f"InferenceParams.step: keys of {new.size(0)} sequences with {new.size(1)} tokens; "
                f"pre_step was told {counts}"
            )


@contextlib.contextmanager
def cached(
    module: torch.nn.Module, args: tuple[Any, ...], arguments: dict[str, Any]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments that a forward with ``inference_params`` goes on with, while caches serve it.

    ``module``: a DotProductAttention, MultiheadAttention or TransformerLayer, of which the self
    attention alone is cached.
    """
    arguments = dict(arguments)
    owner = f"{type(module).__name__}.forward"
    params = arguments.pop("inference_params")
    if not isinstance(params, InferenceParams):
        expected = "telens.pytorch.InferenceParams"
        raise refusal(owner, "inference_params", expected, params)
    if getattr(module, "attention_type", None) == "cross":
        raise _C.UsageError(
            f"{owner}: inference_params is for self attention; call cross attention, which sees "
            "the encoder's keys anew in each step, without it"
        )
    angles = arguments.get("rotary_pos_emb")
    if angles is not None and getattr(module, "layer_type", None) == "decoder":
        raise _C.UsageError(
            f"{owner}: rotary_pos_emb of a decoder does not go with inference_params: its cross "
            "attention would take the new tokens' angles for the encoder's keys"
        )
    attention = getattr(module, "self_attention", module)
    core = getattr(attention, "core_attention", attention)
    number = params.layer_number(attention)
    if core is module:
        # It has no module around it whose call would run a hook.
        args, arguments = _with_cached_keys(core, params, number, args, arguments)
        yield args, arguments
        return
    if angles is not None:
        hidden = args[0] if args else arguments["hidden_states"]
        pair = angles if isinstance(angles, tuple | list) else (angles, angles)
        arguments["rotary_pos_emb"] = tuple(
            _angles_of_new(each, params, hidden, attention.qkv_format) for each in pair
        )

    def use_cache(core: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return _with_cached_keys(core, params, number, args, kwargs)

    handle = core.register_forward_pre_hook(use_cache, with_kwargs=True)
    try:
        yield args, arguments
    finally:
        handle.remove()


def _angles_of_new(
    angles: torch.Tensor, params: InferenceParams, hidden: torch.Tensor, qkv_format: str
) -> torch.Tensor:
    """[new tokens, batch, 1, channels]: those of the places where the new tokens stand."""
    count = hidden.size(0 if qkv_format == "sbhd" else 1)
    longest = max(params.sequences.values(), default=0)
    if angles.size(0) < longest:
        raise _C.ShapeError(
            f"rotary_pos_emb has {angles.size(0)} positions, and a sequence of inference_params "
            f"{longest} tokens; make angles of as many"
        )
    first = params.get_seqlens_pre_step().to(angles.device, torch.int64)
    places = torch.arange(count, device=angles.device)[:, None] + first
    # Padding behind the new tokens may stand anywhere.
    return angles[places.clamp_max(angles.size(0) - 1)].squeeze(3)


def _with_cached_keys(
    core: torch.nn.Module, params: InferenceParams, number: int, args: tuple, kwargs: dict
) -> tuple[tuple, dict]:
    """The arguments of a DotProductAttention with all keys and values in place of the new ones."""
    names = ("query_layer", "key_layer", "value_layer")
    given = dict(zip(names, args, strict=False)) | kwargs
    query_format = given.get("qkv_format") or core.qkv_format
    mask = given.get("attn_mask_type") or core.attn_mask_type
    masks = given.get("attention_mask")
    has_masks = masks is not None and (isinstance(masks, torch.Tensor) or len(masks) > 0)
    has_lengths = any(
        name.startswith("cu_seqlens") and value is not None for name, value in given.items()
    )
    if mask == "arbitrary" or has_masks or has_lengths:
        raise _C.UsageError(
            "attention: attention_mask, cu_seqlens and attn_mask_type arbitrary do not go with "
            "inference_params, whose pre_step tells the lengths of the sequences; leave them out"
        )
    keys, values = params.step(number, given["key_layer"], given["value_layer"], query_format)
    new_tokens = given["query_layer"].size(0 if query_format == "sbhd" else 1)
    lengths = [
        torch.tensor(each, device=keys.device)[:, None]
        for each in (
            [after - params.sequences_pre_step[name] for name, after in params.sequences.items()],
            [*params.sequences.values()],
        )
    ]
    masks = tuple(
        (torch.arange(size, device=keys.device) >= each)[:, None, None]
        for size, each in zip((new_tokens, keys.size(1)), lengths, strict=True)
    )
    if query_format == "sbhd":
        keys, values = keys.transpose(0, 1), values.transpose(0, 1)
    dtype = given["query_layer"].dtype
    return (given["query_layer"], keys.to(dtype), values.to(dtype)), {
        **{name: value for name, value in given.items() if name not in names},
        "attention_mask": masks,
        "attn_mask_type": "padding_causal_bottom_right" if "causal" in mask else "padding",
    }
