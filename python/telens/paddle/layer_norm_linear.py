"""Normalization, then y = x A^T + b."""

from __future__ import annotations

from typing import Any

import paddle
import paddle.nn.functional as F

from telens import _C
from telens.paddle import collectives, tensor_parallel
from telens.paddle.arguments import check_attributes, check_epsilon, check_sizes
from telens.paddle.layer_norm import NormalizedLayer

__all__ = ["LayerNormLinear"]


class LayerNormLinear(NormalizedLayer):
    """Normalization, then a linear layer.

    Parameters
    ----------
    in_features, out_features
        sizes of an input and an output sample
    eps
        added to the variance
    weight_attr, bias_attr
        ``paddle.ParamAttr`` of the linear layer's weight and bias; ``bias_attr=False`` for no bias
    normalization
        'LayerNorm' or 'RMSNorm'
    return_layernorm_output
        also returns the normalized input
    zero_centered_gamma
        the norm's weight starts at 0, and 1 + weight is the factor
    parallel_mode, sequence_parallel, tp_group, fuse_wgrad_accumulation, backend
        as for ``Linear``; 'Row' is rejected, since the norm needs every feature of a sample
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        weight_attr: paddle.ParamAttr | None = None,
        bias_attr: paddle.ParamAttr | bool | None = None,
        normalization: str = "LayerNorm",
        return_layernorm_output: bool = False,
        zero_centered_gamma: bool = False,
        parallel_mode: str | None = None,
        sequence_parallel: bool = False,
        tp_group: Any = None,
        fuse_wgrad_accumulation: bool = False,
        backend: str = "transformer_engine",
    ) -> None:
        super().__init__(backend)
        owner = "LayerNormLinear"
        check_sizes(owner, in_features=in_features, out_features=out_features)
        check_epsilon(owner, "eps", eps)
        check_attributes(owner, weight_attr, bias_attr)
        self.parallel = tensor_parallel.LinearParallel.of(
            owner, parallel_mode, sequence_parallel, tp_group
        )
        if self.parallel.mode == "row" and self.parallel.is_parallel:
            raise _C.UsageError(
                "LayerNormLinear: parallel_mode must be 'Column' or None: with 'Row' each rank "
                "would have a part of the features, but the norm requires all of them; use "
                "LayerNorm and Linear"
            )
        self.in_features, self.out_features = self.parallel.own_part(in_features, out_features)
        self.eps = eps
        self.normalization = normalization
        self.return_layernorm_output = return_layernorm_output
        self.zero_centered_gamma = zero_centered_gamma
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.norm_parallel = self.parallel
        self._make_norm(self.in_features, normalization, zero_centered_gamma)
        with self.parallel.own_random_state():
            self._make_weight("weight", self.out_features, self.in_features, weight_attr)
        self._make_bias("bias", self.out_features, bias_attr)
        self.parallel.mark_weight(self.weight, transposed=self.backend == "paddle")
        self.parallel.mark_bias(self.bias)
        self._make_core(
            "LayerNormLinear",
            {"layer_norm_weight": "ln_weight", "layer_norm_bias": "ln_bias"},
            in_features=self.in_features,
            out_features=self.out_features,
            eps=eps,
            normalization=normalization,
            bias=self.bias is not None,
            return_layernorm_output=return_layernorm_output,
            zero_centered_gamma=zero_centered_gamma,
            fuse_wgrad_accumulation=fuse_wgrad_accumulation,
            **self.parallel.core_options(),
        )

    def forward(
        self, inp: paddle.Tensor, is_first_microbatch: bool | None = None
    ) -> paddle.Tensor | tuple[paddle.Tensor, paddle.Tensor]:
        """[..., in_features] -> [..., out_features], or that and the normalized input."""
        inp = self.parallel.before(inp)
        if self._core is None:
            normalized = self._normalize(inp)
            out = F.linear(normalized, self.weight, self.bias)
            found = (out, normalized) if self.return_layernorm_output else out
        else:
            found = self._call_core(inp, is_first_microbatch=is_first_microbatch)
        if self.return_layernorm_output and self.parallel.sequence:
            return found[0], collectives.own_sequence(found[1], self.parallel.group)
        return found

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"
