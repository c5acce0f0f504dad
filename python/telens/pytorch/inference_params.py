"""Keys and values of earlier tokens, kept for generation: ``InferenceParams``."""

from __future__ import annotations

import contextlib
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
        if is_paged and (page_size is None or total_num_pages is None):
            raise _C.UsageError("InferenceParams: is_paged needs page_size and total_num_pages")
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
        self.reset()

    def reset(self) -> None:
        """Forgets all sequences; the memory stays."""
        self.sequences: OrderedDict[Any, int] = OrderedDict()
        self.sequences_pre_step: OrderedDict[Any, int] = OrderedDict()
        self._pages: dict[Any, list[int]] = {}
        self._free = list(range(self.total_num_pages))

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

    def get_seqlens_pre_step(self) -> torch.Tensor:
        """The sequences' lengths before the iteration, int32 [batch]."""
        return torch.tensor([*self.sequences_pre_step.values()], dtype=torch.int32)

    def step(
        self, layer_number: int, new_k: torch.Tensor, new_v: torch.Tensor, qkv_format: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keeps the new keys and values of a layer; returns all of the batch's.

        ``new_k``, ``new_v``: [seq, batch, heads, size] for sbhd; bshd. Returns both as [batch,
        longest sequence, heads, size], with whatever lies there behind a sequence's end.
        """
        among("InferenceParams.step", "qkv_format", qkv_format, _FORMATS)
        if layer_number not in self._caches:
            self.allocate_memory(layer_number, new_k.device)
        new = [t.detach().transpose(0, 1) if qkv_format == "sbhd" else t for t in (new_k, new_v)]
        self._check_batch(new[0])
        longest = max(self.sequences.values(), default=0)
        rows = torch.tensor(
            [self._rows(name, longest) for name in self.sequences], device=new_k.device
        ).view(len(self.sequences), longest)
        kept = []
        with torch.no_grad():
            for cache, tensor in zip(self._caches[layer_number], new, strict=True):
                for b, (name, first) in enumerate(self.sequences_pre_step.items()):
                    count = self.sequences[name] - first
                    cache[rows[b, first : first + count]] = tensor[b, :count].to(cache.dtype)
                kept.append(cache[rows])
        return kept[0], kept[1]

    def _rows(self, name: Any, longest: int) -> list[int]:
        """Where the tokens of a sequence lie; 0 behind its end."""
        size, pages = self.page_size, self._pages[name]
        length = self.sequences[name]
        rows = [pages[i // size] * size + i % size for i in range(length)]
        return rows + [0] * (longest - length)

    def _check_batch(self, new: torch.Tensor) -> None:
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
) -> Iterator[dict[str, Any]]:
    """The keywords that a forward with ``inference_params`` goes on with, while caches serve it.

    ``module``: a DotProductAttention, MultiheadAttention or TransformerLayer, of which the self
    attention alone is cached.
    """
    arguments = dict(arguments)
    params = arguments.pop("inference_params")
    if not isinstance(params, InferenceParams):
        expected = "telens.pytorch.InferenceParams"
        raise refusal(f"{type(module).__name__}.forward", "inference_params", expected, params)
    attention = getattr(module, "self_attention", module)
    number = getattr(attention, "layer_number", None)
    core = getattr(attention, "core_attention", attention)
    if number is None:
        # A module that was made without a number is its own.
        number = id(attention)
    angles = arguments.get("rotary_pos_emb")
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
        yield arguments
    finally:
        handle.remove()


def _angles_of_new(
    angles: torch.Tensor, params: InferenceParams, hidden: torch.Tensor, qkv_format: str
) -> torch.Tensor:
    """[new tokens, batch, 1, channels]: those of the places where the new tokens stand."""
    count = hidden.size(0 if qkv_format == "sbhd" else 1)
    first = params.get_seqlens_pre_step().to(angles.device, torch.int64)
    places = torch.arange(count, device=angles.device)[:, None] + first
    return angles[places.clamp_max(angles.size(0) - 1)].squeeze(3)


def _with_cached_keys(
    core: torch.nn.Module, params: InferenceParams, number: int, args: tuple, kwargs: dict
) -> tuple[tuple, dict]:
    """The arguments of a DotProductAttention with all keys and values in place of the new ones."""
    names = ("query_layer", "key_layer", "value_layer")
    given = dict(zip(names, args, strict=False)) | kwargs
    query_format = given.get("qkv_format") or core.qkv_format
    keys, values = params.step(number, given["key_layer"], given["value_layer"], query_format)
    mask = given.get("attn_mask_type") or core.attn_mask_type
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
