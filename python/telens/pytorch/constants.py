"""Data types and names of options, where scripts for Transformer Engine import them from."""

from types import SimpleNamespace

import torch

from telens._C import DType

__all__ = [
    "MXFP8_BLOCK_SCALING_SIZE",
    "NVFP4_BLOCK_SCALING_SIZE",
    "AttnBiasTypes",
    "AttnMaskTypes",
    "AttnTypes",
    "DType",
    "FP8BwdTensorIdx",
    "FP8FwdTensorIdx",
    "GemmParallelModes",
    "LayerTypes",
    "QKVLayouts",
    "TE_DType",
    "TE_DType_To_Torch",
    "dist_group_type",
]

# torch's dtypes and their members of DType. torch does not have a dtype for E2M1.
TE_DType = {
    torch.float32: DType.kFloat32,
    torch.float16: DType.kFloat16,
    torch.bfloat16: DType.kBFloat16,
    torch.float8_e4m3fn: DType.kFloat8E4M3,
    torch.float8_e5m2: DType.kFloat8E5M2,
}
TE_DType_To_Torch = {ours: of_torch for of_torch, ours in TE_DType.items()}

# Elements of a block under one scale.
MXFP8_BLOCK_SCALING_SIZE = 32
NVFP4_BLOCK_SCALING_SIZE = 16

AttnMaskTypes = (
    "no_mask",
    "padding",
    "causal",
    "padding_causal",
    "causal_bottom_right",
    "padding_causal_bottom_right",
    "arbitrary",
)
AttnTypes = ("self", "cross")
AttnBiasTypes = ("pre_scale_bias", "post_scale_bias", "no_bias", "alibi")
LayerTypes = ("encoder", "decoder")
GemmParallelModes = ("row", "column", None)
dist_group_type = torch.distributed.ProcessGroup

# Layouts of query, key and value in memory: packed, or one name for each of the three.
_FORMATS = ("sbhd", "bshd", "thd")
_PREFIXES = {"sbhd": "sb", "bshd": "bs", "thd": "t"}  # dimensions before heads
_SEPARATE = [(q, kv) for q in _FORMATS for kv in ("sbhd", "bshd") if q != kv]
QKVLayouts = (
    *(
        layout
        for each, at in _PREFIXES.items()
        for layout in (f"{at}3hd", f"{at}h3d", f"{each}_{at}2hd", f"{each}_{at}h2d")
    ),
    *(f"{each}_{each}_{each}" for each in _FORMATS),
    *(f"{q}_{kv}_{kv}" for q, kv in _SEPARATE),
    *(f"paged_kv_{q}_{kv}_{kv}" for q in _FORMATS for kv in ("bshd", "sbhd")),
)

# Slots of ``fp8_meta`` tensors: three per GEMM in the forward, two in the backward.
FP8FwdTensorIdx = SimpleNamespace(
    GEMM1_INPUT=0,
    GEMM1_WEIGHT=1,
    GEMM1_OUTPUT=2,
    GEMM2_INPUT=3,
    GEMM2_WEIGHT=4,
    GEMM2_OUTPUT=5,
    GEMM3_OUTPUT=8,
)
FP8BwdTensorIdx = SimpleNamespace(
    GRAD_OUTPUT1=0,
    GRAD_INPUT1=1,
    GRAD_OUTPUT2=2,
    GRAD_INPUT2=3,
    GRAD_OUTPUT3=4,
    GRAD_INPUT3=5,
)
