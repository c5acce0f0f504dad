"""Storage of the keys and values of ``InferenceParams``: one cache per layer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from telens import _C

__all__ = ["KVCacheManager", "NonPagedKVCacheManager", "PagedKVCacheManager"]


class KVCacheManager:
    """Caches that consist of pages. Sequences allocate pages as they grow and free them when they
    end.

    Attributes
    ----------
    cache
        layer number -> (keys, values), [total_num_pages, page_size, heads, size] each. A pair may
        be replaced, for example by one with pages in a different order.
    sequences
        name -> number of tokens, in the order of the batch
    """

    def __init__(
        self,
        total_num_pages: int,
        page_size: int,
        num_heads: int,
        head_dim_k: int,
        dtype: torch.dtype,
        head_dim_v: int,
        device: torch.device | str | None = None,
    ) -> None:
        self.total_num_pages = total_num_pages
        self.page_size = page_size
        self.num_heads = num_heads
        self.head_dim_k = head_dim_k
        self.head_dim_v = head_dim_v
        self.dtype = dtype
        self._device = device
        self.cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.reset()

    def reset(self) -> None:
        """Forgets all sequences; the memory stays."""
        self.sequences: OrderedDict[Any, int] = OrderedDict()
        self._pages: dict[Any, list[int]] = {}
        self._free = list(range(self.total_num_pages))

    def allocate_memory(self, layer_number: int, device: torch.device | None = None) -> None:
        """Allocates the cache of a layer."""
        self.cache[layer_number] = tuple(
            torch.zeros(
                self.total_num_pages,
                self.page_size,
                self.num_heads,
                size,
                dtype=self.dtype,
                device=self._device or device,
            )
            for size in (self.head_dim_k, self.head_dim_v)
        )

    def pre_step(self, step_dict: Mapping[Any, int]) -> OrderedDict[Any, int]:
        """Allocates pages for each sequence's new tokens. Frees the pages of sequences that are not
        named.

        Returns the lengths after the step. UsageError if there are too few free pages.
        """
        after = OrderedDict(
            (name, self.sequences.get(name, 0) + count) for name, count in step_dict.items()
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
        self.sequences = after
        return after

    def page_lists(self) -> list[list[int]]:
        """Returns the page numbers by sequence, in the order of the batch."""
        return [self._pages[name] for name in self.sequences]


class NonPagedKVCacheManager(KVCacheManager):
    """One page of the full length for each sequence: [max_batch_size, max_seqlen, heads, size]."""


class PagedKVCacheManager(KVCacheManager):
    """Pages of a given size, which sequences allocate as they grow."""
