"""Every row: which program measures it, how its value follows from the samples, its target.

A group of rows is a file of this package; here is their order.
"""

from rows import (
    config,
    diagnose,
    features,
    fp8_linear,
    histogram,
    many_ranks,
    overlap,
    paddle_linear,
    peer_statistics,
    python_linear,
    python_peers,
    quantize,
    query,
    rank_exchange,
    recorder,
    sample,
    tensor_statistics,
    untouched_layer,
    what_if,
)
from rows.simd import AVX2, AVX512

GROUPS = (
    tensor_statistics.group(AVX512),
    quantize.group(AVX512),
    tensor_statistics.group(AVX2),
    quantize.group(AVX2),
    histogram.GROUP,
    what_if.GROUP,
    untouched_layer.GROUP,
    python_linear.GROUP,
    python_peers.GROUP,
    paddle_linear.GROUP,
    fp8_linear.GROUP,
    fp8_linear.AVX2_GROUP,
    sample.GROUP,
    features.GROUP,
    peer_statistics.GROUP,
    recorder.GROUP,
    query.GROUP,
    diagnose.GROUP,
    rank_exchange.GROUP,
    overlap.GROUP,
    many_ranks.GROUP,
    config.GROUP,
)
