"""Registers Paddle's layer classes with ``telens.debug``."""

from __future__ import annotations

import paddle

from telens.debug.layer_trees import TREES, LayerTree
from telens.paddle.layer import Layer

__all__: list[str] = []

# Paddle's own layers pass their attribute `name` to operators.
TREES.append(
    LayerTree(
        layer=paddle.nn.Layer,
        layer_name="paddle.nn.Layer",
        layer_list=paddle.nn.LayerList,
        own_layer=Layer,
        name_attribute="_telens_name",
        is_linear=lambda layer: isinstance(layer, paddle.nn.Linear),
    )
)
