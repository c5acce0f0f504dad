"""``telens.pytorch.quantization`` under the name that older scripts import, with the recipes."""

from telens.common.recipe import *  # noqa: F403
from telens.common.recipe import __all__ as _recipes
from telens.pytorch.fp8_meta import RecipeState
from telens.pytorch.quantization import *  # noqa: F403
from telens.pytorch.quantization import __all__ as _quantization
from telens.pytorch.tensor import fp8_model_init

__all__ = ["RecipeState", "fp8_model_init", *_recipes, *_quantization]
