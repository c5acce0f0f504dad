"""Layer normalization."""

from __future__ import annotations

import paddle

from telens.paddle.arguments import check_attributes, check_epsilon, check_sizes
from telens.paddle.layer import Layer
from telens.paddle.paddle_operators import normalize
from telens.paddle.tensor_parallel import LinearParallel

__all__ = ["LayerNorm", "NormalizedLayer"]


class LayerNorm(Layer):
    """Layer normalization (https://arxiv.org/abs/1607.06450).

    Parameters
    ----------
    hidden_size
        size of an input sample
    eps
        added to the variance
    weight_attr
        ``paddle.ParamAttr`` of the weight, which starts at 1, or at 0 with ``zero_centered_gamma``
    bias_attr
        ``paddle.ParamAttr`` of the bias; False for zeros that are not trained
    zero_centered_gamma
        1 + weight is the factor
    sequence_parallel
        marks the parameters for fleet's hooks, which sum their gradients over the ranks
    backend
        'transformer_engine' (the C++ core) or 'paddle' (Paddle's operator)
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        weight_attr: paddle.ParamAttr | None = None,
        bias_attr: paddle.ParamAttr | bool | None = None,
        zero_centered_gamma: bool = False,
        sequence_parallel: bool = False,
        backend: str = "transformer_engine",
    ) -> None:
        super().__init__(backend)
        check_sizes("LayerNorm", hidden_size=hidden_size)
        check_epsilon("LayerNorm", "eps", eps)
        check_attributes("LayerNorm", weight_attr, bias_attr)
        self.eps = eps
        self.zero_centered_gamma = zero_centered_gamma
        first = 0.0 if zero_centered_gamma else 1.0
        self._make_constant("weight", hidden_size, weight_attr, first, is_bias=False)
        if bias_attr is False:
            bias_attr = paddle.ParamAttr(trainable=False)
        self._make_constant("bias", hidden_size, bias_attr, 0.0, is_bias=True)
        if sequence_parallel:
            self.weight.sequence_parallel = True
            self.bias.sequence_parallel = True
        self._make_core(
            "LayerNorm",
            {},
            normalized_shape=int(hidden_size),
            eps=eps,
            zero_centered_gamma=zero_centered_gamma,
        )

    def forward(self, inp: paddle.Tensor) -> paddle.Tensor:
        """[..., hidden_size] -> the same shape."""
        if self._core is not None:
            return self._call_core(inp)
        return normalize(
            "LayerNorm",
            inp,
            self.weight,
            self.bias,
            eps=self.eps,
            normalization="LayerNorm",
            zero_centered_gamma=self.zero_centered_gamma,
        )


class NormalizedLayer(Layer):
    """A layer whose input is normalized first.

    Its constructor sets ``eps``, ``normalization``, ``zero_centered_gamma``, and ``norm_parallel``:
    how the linear layer after the norm is divided among ranks.
    """

    norm_parallel: LinearParallel

    def _normalize(self, inp: paddle.Tensor) -> paddle.Tensor:
        """Runs Paddle's operators."""
        parallel = self.norm_parallel
        return normalize(
            type(self).__name__,
            inp,
            parallel.whole_gradient(self.ln_weight),
            parallel.whole_gradient(self.ln_bias),
            eps=self.eps,
            normalization=self.normalization,
            zero_centered_gamma=self.zero_centered_gamma,
        )

    def _core_parameters(self) -> list[paddle.Tensor | None]:
        found = super()._core_parameters()
        whole_gradient = self.norm_parallel.whole_gradient
        return [
            whole_gradient(each) if name.startswith("ln_") else each
            for name, each in zip(self._order, found, strict=True)
        ]
