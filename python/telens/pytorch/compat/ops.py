"""``te.ops``: names of fusible operations, which are missing."""

import torch

from telens.pytorch.compat.missing import missing_class, missing_function

_PATH = "transformer_engine.pytorch.ops"
_ADVICE = (
    "use torch.nn.Sequential of modules of telens.pytorch, of which LayerNormLinear and "
    "LayerNormMLP are fused"
)

# Keys of buffers that callers of GroupedLinear pass; Transformer Engine's ops.basic.grouped_linear.
OUTPUT_BUFFER_KEY = "output"
GRAD_INPUT_BUFFER_KEY = "grad_input"

_OPERATIONS = [
    "AddExtraInput",
    "AllGather",
    "AllReduce",
    "BasicLinear",
    "BasicOperation",
    "Bias",
    "ClampedSwiGLU",
    "ConstantScale",
    "Dropout",
    "FusedOperation",
    "FusibleOperation",
    "GEGLU",
    "GELU",
    "GLU",
    "GroupedLinear",
    "Identity",
    "L2Normalization",
    "LayerNorm",
    "Linear",
    "MakeExtraOutput",
    "QGEGLU",
    "QGELU",
    "Quantize",
    "RMSNorm",
    "ReGLU",
    "ReLU",
    "ReduceScatter",
    "Reshape",
    "SReGLU",
    "SReLU",
    "ScaledClampedQGeGLU",
    "ScaledSReLU",
    "ScaledSwiGLU",
    "Sequential",
    "SiLU",
    "SwiGLU",
]
_FUNCTIONS = [
    "register_backward_fusion",
    "register_forward_backward_fusion",
    "register_forward_fusion",
]

__all__ = [*_OPERATIONS, *_FUNCTIONS]

for _name in _OPERATIONS:
    globals()[_name] = missing_class(f"{_PATH}.{_name}", _ADVICE, torch.nn.Module)
for _name in _FUNCTIONS:
    globals()[_name] = missing_function(f"{_PATH}.{_name}", _ADVICE)
