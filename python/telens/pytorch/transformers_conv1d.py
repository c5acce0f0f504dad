"""What ``convert`` puts in the place of Hugging Face's Conv1D; needs transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import transformers.pytorch_utils

from telens.pytorch._compile import mark_graph_break
from telens.pytorch.extra_state import WithExtraState
from telens.pytorch.module import Module
from telens.pytorch.modules import Linear

__all__: list[str] = []


class Conv1D(WithExtraState, Module, transformers.pytorch_utils.Conv1D):
    """y = x W + b with the weight as GPT-2's checkpoints have it, [in_features, out_features].

    In all else it is ``Linear``: its GEMMs run in FP8 and can be watched. In debug sessions the
    weight and wgrad have Linear's shape, [out_features, in_features].
    """

    _type = Linear._type

    def __init__(self, nf: int, nx: int, **options: Any) -> None:
        super().__init__(nx, nf, **options)
        self.nf, self.nx = nf, nx
        self.weight = torch.nn.Parameter(self.weight.detach().t().contiguous())

    @mark_graph_break
    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        parameters = dict(self._parameters)
        parameters["weight"] = self.weight.t()
        if "bias" not in parameters:
            parameters["bias"] = self.bias
        owner = SimpleNamespace(
            _parameters=parameters, _buffers=self._buffers, _modules={}, training=self.training
        )
        return self._telens_call(owner, (x, *args), kwargs)

    def reset_parameters(self) -> None:
        """Fills the parameters as Hugging Face's Conv1D does."""
        with torch.no_grad():
            torch.nn.init.normal_(self.weight, std=0.02)
            torch.nn.init.zeros_(self.bias)
