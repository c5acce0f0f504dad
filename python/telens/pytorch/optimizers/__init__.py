"""Optimizers and operations over lists of tensors, where Transformer Engine has them."""

from telens.pytorch.optimizers import multi_tensor
from telens.pytorch.optimizers.fused_adam import FusedAdam
from telens.pytorch.optimizers.fused_sgd import FusedSGD
from telens.pytorch.optimizers.multi_tensor import *  # noqa: F403

__all__ = ["FusedAdam", "FusedSGD", *multi_tensor.__all__]
