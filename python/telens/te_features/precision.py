"""What each GEMM of a layer ran in: the feature ``TELensGemmPrecision``."""

from __future__ import annotations

import logging

from telens import _C

__all__ = ["PrecisionWatch"]

# The GEMMs that read the rowwise and the columnwise copy of a tensor.
_GEMMS = {
    "activation": ("fprop", "wgrad"),
    "weight": ("fprop", "dgrad"),
    "gradient": ("dgrad", "wgrad"),
}
# The smallest element of a high-precision operand.
_HIGH_PRECISION_BITS = 16

_Precision = tuple[str, int]  # words, bits of an element


class PrecisionWatch:
    """Records the precision of operands, and reports each one in the log when it changes.

    The run file's ledger also lists kernels and is therefore written by TELens' own modules only:
    Transformer Engine does not show its GEMMs to features.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, str], tuple[int, _Precision]] = {}

    def note(
        self,
        layer: str,
        tensor_name: str,
        rowwise: _Precision | None,
        columnwise: _Precision | None,
        is_quantized: bool,
        iteration: int,
    ) -> None:
        """Records a tensor's two operands.

        ``is_quantized``: the recipe quantizes the tensor. None: a copy of an unknown class.
        """
        copies = (rowwise, columnwise)
        for gemm, precision in zip(_GEMMS[tensor_name], copies, strict=True):
            if precision is None:
                continue
            words, bits = precision
            key = (layer, gemm, tensor_name)
            last_iteration, last = self._last.get(key, (None, None))
            self._last[key] = (iteration, precision)
            if last == precision and last_iteration == iteration:  # another micro-batch
                continue
            _C.log_scalar(f"{layer}_{tensor_name}_bits_in_{gemm}", bits, iteration)
            if last == precision:
                continue
            fell_back = is_quantized and bits >= _HIGH_PRECISION_BITS
            text = f"{tensor_name} of {gemm} is {words}"
            if fell_back:
                text += ", although the recipe quantizes it"
            level = logging.WARNING if fell_back else logging.INFO
            _C.debug.log_message(text, layer, level, f"{iteration}")
