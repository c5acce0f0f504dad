"""Default answers of the calls."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["TEDefaultFeatures"]


class TEDefaultFeatures:
    """The seven calls with the answers that apply if no feature implements them.

    A feature class may inherit it in addition to ``TEConfigAPIMapper`` and delegate with
    ``super()``; only methods with ``@api_method`` are called. Routing calls return (enabled, next
    iteration to query); None means never.
    """

    def fp8_gemm_enabled(
        self, config: dict, layer_name: str, gemm: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Whether the GEMM runs in FP8: yes."""
        return True, None

    def modify_tensor_enabled(
        self, config: dict, layer_name: str, gemm: str, tensor_name: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Whether ``modify_tensor`` is called: no."""
        return False, None

    def modify_tensor(
        self,
        config: dict,
        layer_name: str,
        gemm: str,
        tensor_name: str,
        tensor: torch.Tensor,
        default_quantizer: Any,
        iteration: int,
        out: Any = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor | None:
        """Raises an error: a feature that modifies tensors must define this method."""
        raise NotImplementedError(
            f"{type(self).__name__}: modify_tensor_enabled answered True for the {tensor_name} of "
            f"{gemm} in layer {layer_name}, and no modify_tensor handles it; add one"
        )

    def inspect_tensor_enabled(
        self, config: dict, layer_name: str, tensor_name: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Whether ``inspect_tensor`` is called: no."""
        return False, None

    def inspect_tensor(
        self,
        config: dict,
        layer_name: str,
        tensor_name: str,
        tensor: torch.Tensor | None,
        rowwise_quantized_tensor: Any,
        columnwise_quantized_tensor: Any,
        quantizer: Any,
        iteration: int,
        tp_group: torch.distributed.ProcessGroup | None,
        tp_size: int = 1,
    ) -> None:
        """Looks at nothing."""

    def inspect_tensor_postquantize_enabled(
        self, config: dict, layer_name: str, gemm: str, tensor_name: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Whether ``inspect_tensor_postquantize`` is called: no."""
        return False, None

    def inspect_tensor_postquantize(
        self,
        config: dict,
        layer_name: str,
        tensor_name: str,
        tensor: Any,
        iteration: int,
        tp_group: torch.distributed.ProcessGroup | None,
        rowwise: bool,
        gemm: str | None = None,
        tp_size: int = 1,
    ) -> None:
        """Looks at nothing."""
