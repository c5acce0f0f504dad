"""What quantizers of a ``CustomRecipe`` are written with."""

from telens.pytorch.custom_recipes import gemm

__all__ = ["gemm"]
