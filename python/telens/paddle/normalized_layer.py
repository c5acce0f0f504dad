"""The base of layers that begin with a normalization."""

from __future__ import annotations

import paddle

from telens.paddle.layer import Layer
from telens.paddle.paddle_operators import normalize
from telens.paddle.tensor_parallel import LinearParallel

__all__ = ["NormalizedLayer"]


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
