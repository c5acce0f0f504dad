"""CUDA graphs of modules: ``make_graphed_callables``."""

from telens.pytorch.graphs.callables import make_graphed_callables

__all__ = ["make_graphed_callables"]
