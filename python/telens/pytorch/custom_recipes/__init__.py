"""Classes for quantizers of a ``CustomRecipe``."""

from telens.pytorch.custom_recipes import gemm

__all__ = ["gemm"]
