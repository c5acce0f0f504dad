"""``DisableQuantizationLayer`` under its former name."""

from telens.debug.features.disable_quantization_layer import (
    DisableQuantizationLayer as DisableFP8Layer,
)

__all__ = ["DisableFP8Layer"]
