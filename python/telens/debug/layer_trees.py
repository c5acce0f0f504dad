"""How the layers of a model hang together, in each framework that has layers to name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from telens.pytorch.module import Module

__all__ = ["TREES", "LayerTree"]


@dataclass(frozen=True)
class LayerTree:
    """The layer classes of a framework. Its layers have ``named_children()``."""

    layer: type  # base class of the layers
    layer_name: str  # the name that users write
    layer_list: type  # children are numbered
    own_layer: type  # layers of this package: named by set_debug_name
    name_attribute: str  # where others get their name
    is_linear: Callable[[Any], bool]  # returns whether a layer of another library is linear


def _is_linear_of_torch(module: torch.nn.Module) -> bool:
    names = (type(module).__module__, type(module).__name__)
    is_conv1d = names == ("transformers.pytorch_utils", "Conv1D")
    return isinstance(module, torch.nn.Linear) or is_conv1d


# telens.paddle adds Paddle's.
TREES = [
    LayerTree(
        layer=torch.nn.Module,
        layer_name="torch.nn.Module",
        layer_list=torch.nn.ModuleList,
        own_layer=Module,
        name_attribute="name",
        is_linear=_is_linear_of_torch,
    )
]
