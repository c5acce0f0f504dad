"""y = x A^T + b."""

from __future__ import annotations

from typing import Any

import paddle
import paddle.nn.functional as F

from telens.paddle import tensor_parallel
from telens.paddle.arguments import check_attributes, check_sizes
from telens.paddle.layer import Layer

__all__ = ["Linear"]


class Linear(Layer):
    """Applies y = x A^T + b.

    Parameters
    ----------
    in_features, out_features
        sizes of an input and an output sample
    weight_attr
        ``paddle.ParamAttr`` of the weight, [out_features, in_features] (the transpose of
        ``paddle.nn.Linear``'s; with ``backend='paddle'`` it is Paddle's)
    bias_attr
        ``paddle.ParamAttr`` of the bias; False for no bias
    parallel_mode
        None, 'Column' (the weight's rows are divided among the ranks of ``tp_group``) or 'Row' (its
        columns are, and outputs are summed), also in small letters
    sequence_parallel
        with 'Column' inputs are parts of a sequence, which are gathered; with 'Row' outputs are
        scattered; the sequence is dimension 1 of [batch, seq, hidden], or 0 of [seq, hidden]
    tp_group
        ``paddle.distributed`` group; default: fleet's model-parallel group
    fuse_wgrad_accumulation
        the GEMM adds the weight gradient to ``weight.main_grad``, an FP32 tensor that the caller
        creates; ``weight.grad`` stays None
    gather_output
        with 'Column': the ranks' outputs are concatenated
    backend
        'transformer_engine' (the C++ core) or 'paddle' (Paddle's operators, no FP8)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        weight_attr: paddle.ParamAttr | None = None,
        bias_attr: paddle.ParamAttr | bool | None = None,
        parallel_mode: str | None = None,
        sequence_parallel: bool = False,
        tp_group: Any = None,
        fuse_wgrad_accumulation: bool = False,
        gather_output: bool = False,
        backend: str = "transformer_engine",
    ) -> None:
        super().__init__(backend)
        check_sizes("Linear", in_features=in_features, out_features=out_features)
        check_attributes("Linear", weight_attr, bias_attr)
        self.parallel = tensor_parallel.LinearParallel.of(
            "Linear", parallel_mode, sequence_parallel, tp_group, gather_output
        )
        self.in_features, self.out_features = self.parallel.own_part(in_features, out_features)
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        with self.parallel.own_random_state():
            self._make_weight("weight", self.out_features, self.in_features, weight_attr)
        self._make_bias("bias", self.out_features, bias_attr)
        self.parallel.mark_weight(self.weight, transposed=self.backend == "paddle")
        self.parallel.mark_bias(self.bias)
        self._make_core(
            "Linear",
            {},
            in_features=self.in_features,
            out_features=self.out_features,
            bias=self.bias is not None and not self.parallel.adds_bias_later,
            fuse_wgrad_accumulation=fuse_wgrad_accumulation,
            **self.parallel.core_options(),
        )

    def forward(self, inp: paddle.Tensor, is_first_microbatch: bool | None = None) -> paddle.Tensor:
        """[..., in_features] -> [..., out_features].

        ``is_first_microbatch``: True quantizes and caches the weight, False uses the cached weight,
        None does not cache it.
        """
        parallel = self.parallel.is_parallel
        if parallel:
            inp = self.parallel.before(inp)
        if self._core is None:
            bias = None if self.parallel.adds_bias_later else self.bias
            out = F.linear(inp, self.weight, bias)
        else:
            out = self._call_core(inp, is_first_microbatch=is_first_microbatch)
        return self.parallel.after(out, self.bias) if parallel else out

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"
