"""The FP8 layers, their autocast and recomputation for PaddlePaddle.

The names, arguments and defaults of Transformer Engine's package for Paddle, on the same C++ core
as ``telens.pytorch``. ``telens.debug`` observes these layers like the layers of ``telens.pytorch``.
"""

from telens._load import require_core
from telens.paddle._version import check_paddle

require_core(__name__)
check_paddle()

from telens.paddle.dot_product_attention import DotProductAttention  # noqa: E402
from telens.paddle.fp8 import fp8_autocast  # noqa: E402
from telens.paddle.fused_scale_mask_softmax import FusedScaleMaskSoftmax  # noqa: E402
from telens.paddle.layer_norm import LayerNorm  # noqa: E402
from telens.paddle.layer_norm_linear import LayerNormLinear  # noqa: E402
from telens.paddle.layer_norm_mlp import LayerNormMLP  # noqa: E402
from telens.paddle.linear import Linear  # noqa: E402
from telens.paddle.multi_head_attention import MultiHeadAttention  # noqa: E402
from telens.paddle.recomputation import recompute  # noqa: E402
from telens.paddle.rotary import RotaryPositionEmbedding  # noqa: E402
from telens.paddle.transformer_layer import TransformerLayer  # noqa: E402

__all__ = [
    "DotProductAttention",
    "FusedScaleMaskSoftmax",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "MultiHeadAttention",
    "RotaryPositionEmbedding",
    "TransformerLayer",
    "fp8_autocast",
    "recompute",
]
