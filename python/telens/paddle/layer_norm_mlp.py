"""Normalization, then two linear layers with an activation between them."""

from __future__ import annotations

from typing import Any

import paddle
import paddle.nn.functional as F

from telens.paddle import collectives, tensor_parallel
from telens.paddle.arguments import check_attributes, check_epsilon, check_sizes
from telens.paddle.layer_norm import NormalizedLayer
from telens.paddle.paddle_operators import (
    ACTIVATIONS,
    GATED_ACTIVATIONS,
    activate,
    check_activation,
)

__all__ = ["LayerNormMLP"]


class LayerNormMLP(NormalizedLayer):
    """Normalization, then two linear layers with an activation between them.

    Parameters
    ----------
    hidden_size
        size of an input and an output sample
    ffn_hidden_size
        size between the two linear layers; fc1 has twice as many rows for a gated activation
    eps
        added to the variance
    weight_attr, bias_attr
        ``paddle.ParamAttr`` of both linear layers' weights and biases; ``bias_attr=False`` for no
        biases
    normalization
        'LayerNorm' or 'RMSNorm'
    activation
        'gelu' (by its tanh formula), 'geglu', 'relu', 'reglu', 'squared_relu' or 'swiglu'
    return_layernorm_output
        also returns the normalized input
    zero_centered_gamma
        the norm's weight starts at 0, and 1 + weight is the factor
    set_parallel_mode
        fc1 is divided by columns and fc2 by rows among the ranks of ``tp_group``
    sequence_parallel, tp_group, fuse_wgrad_accumulation, backend
        as for ``Linear``
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        weight_attr: paddle.ParamAttr | None = None,
        bias_attr: paddle.ParamAttr | bool | None = None,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        return_layernorm_output: bool = False,
        zero_centered_gamma: bool = False,
        set_parallel_mode: bool = False,
        sequence_parallel: bool = False,
        tp_group: Any = None,
        fuse_wgrad_accumulation: bool = False,
        backend: str = "transformer_engine",
    ) -> None:
        super().__init__(backend)
        owner = "LayerNormMLP"
        check_sizes(owner, hidden_size=hidden_size, ffn_hidden_size=ffn_hidden_size)
        check_epsilon(owner, "eps", eps)
        check_attributes(owner, weight_attr, bias_attr)
        self.activation = check_activation(owner, activation)
        parts = (sequence_parallel, tp_group)
        self.fc1_parallel, self.fc2_parallel = (
            tensor_parallel.LinearParallel.of(owner, mode if set_parallel_mode else None, *parts)
            for mode in ("column", "row")
        )
        self.hidden_size = hidden_size
        self.ffn_hidden_size = ffn_hidden_size
        self.eps = eps
        self.normalization = normalization
        self.return_layernorm_output = return_layernorm_output
        self.zero_centered_gamma = zero_centered_gamma
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        own_ffn = tensor_parallel.divide(
            owner, "ffn_hidden_size", ffn_hidden_size, self.fc1_parallel.size
        )
        self.norm_parallel = self.fc1_parallel
        self._make_norm(hidden_size, normalization, zero_centered_gamma)
        self._make_linears(own_ffn, weight_attr, bias_attr)
        # If there are several ranks, fc2's bias is added to the sum of their outputs.
        self._make_core(
            "LayerNormMLP",
            {"layer_norm_weight": "ln_weight", "layer_norm_bias": "ln_bias"},
            hidden_size=hidden_size,
            ffn_hidden_size=own_ffn,
            eps=eps,
            bias=self.fc1_bias is not None,
            return_bias=self.fc1_bias is not None and self.fc2_parallel.adds_bias_later,
            normalization=normalization,
            activation=ACTIVATIONS[activation],
            return_layernorm_output=return_layernorm_output,
            zero_centered_gamma=zero_centered_gamma,
            fuse_wgrad_accumulation=fuse_wgrad_accumulation,
        )

    def _make_linears(self, own_ffn: int, weight_attr: Any, bias_attr: Any) -> None:
        fc1_size = own_ffn * (2 if self.activation in GATED_ACTIVATIONS else 1)
        with self.fc1_parallel.own_random_state():
            self._make_weight("fc1_weight", fc1_size, self.hidden_size, weight_attr)
            self._make_weight("fc2_weight", self.hidden_size, own_ffn, weight_attr)
        self._make_bias("fc1_bias", fc1_size, bias_attr)
        self._make_bias("fc2_bias", self.hidden_size, bias_attr)
        transposed = self.backend == "paddle"
        for name, parallel in (("fc1", self.fc1_parallel), ("fc2", self.fc2_parallel)):
            parallel.mark_weight(getattr(self, f"{name}_weight"), transposed=transposed)
            parallel.mark_bias(getattr(self, f"{name}_bias"))

    def forward(
        self, inp: paddle.Tensor, is_first_microbatch: bool | None = None
    ) -> paddle.Tensor | tuple[paddle.Tensor, paddle.Tensor]:
        """[..., hidden_size] -> the same shape, or that and the normalized input."""
        inp = self.fc1_parallel.before(inp)
        if self._core is None:
            out, normalized = self._forward_in_paddle(inp)
        else:
            found = self._call_core(inp, is_first_microbatch=is_first_microbatch)
            found = found if isinstance(found, tuple) else (found,)
            out, normalized = found[0], found[-1]
        out = self.fc2_parallel.after(out, self.fc2_bias)
        if not self.return_layernorm_output:
            return out
        if self.fc1_parallel.sequence:
            normalized = collectives.own_sequence(normalized, self.fc1_parallel.group)
        return out, normalized

    def _forward_in_paddle(self, inp: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        normalized = self._normalize(inp)
        hidden = activate(F.linear(normalized, self.fc1_weight, self.fc1_bias), self.activation)
        bias = None if self.fc2_parallel.adds_bias_later else self.fc2_bias
        return F.linear(hidden, self.fc2_weight, bias), normalized

    def extra_repr(self) -> str:
        return f"hidden_size={self.hidden_size}, ffn_hidden_size={self.ffn_hidden_size}"
