"""Key-value caches at Transformer Engine's path."""

from telens.pytorch.layers.inference_params import InferenceParams
from telens.pytorch.layers.kv_cache import (
    KVCacheManager,
    NonPagedKVCacheManager,
    PagedKVCacheManager,
)

__all__ = ["InferenceParams", "KVCacheManager", "NonPagedKVCacheManager", "PagedKVCacheManager"]
