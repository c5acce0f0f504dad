"""Built-in features as classes that feature classes inherit, under Transformer Engine's names.

The configured features of these names are built in and do not use the classes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from telens import _C
from telens._load import require_core
from telens._names import among, refusal
from telens.debug.base import BaseConfigAPIMapper
from telens.debug.feature_caller import offered_here
from telens.debug.features.api import TEConfigAPIMapper
from telens.debug.features.utils import next_enabled_iter
from telens.debug.logging import get_logger
from telens.debug.registry import api_method

__all__ = [
    "DisableFP8GEMM",
    "DisableFP8Layer",
    "DisableQuantizationGEMM",
    "DisableQuantizationLayer",
    "DumpTensors",
    "FakeQuant",
    "LogFp8TensorStats",
    "LogNvfp4TensorStats",
    "LogTensorStats",
    "LogsStatistics",
    "PerTensorScaling",
    "Scheduled",
    "fake_quantize",
    "per_tensor_cast",
]


class DisableQuantizationGEMM(TEConfigAPIMapper):
    """Runs the selected GEMMs in high precision."""

    @api_method
    def fp8_gemm_enabled(
        self, config: dict, layer_name: str, gemm: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Returns (False, the next iteration)."""
        return False, iteration + 1


class DisableQuantizationLayer(BaseConfigAPIMapper):
    """Runs all GEMMs of the selected layers in high precision."""

    def parse_config_and_api(self, config: dict, **call: Any) -> tuple[bool, dict | None]:
        """Returns (whether the feature is enabled, its configuration): every GEMM is selected."""
        return bool(config.get("enabled", True)), config

    @api_method
    def fp8_gemm_enabled(
        self, config: dict, layer_name: str, gemm: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Returns (False, the next iteration)."""
        return False, iteration + 1


# Former names.
DisableFP8GEMM = DisableQuantizationGEMM
DisableFP8Layer = DisableQuantizationLayer

_ELEMENTS = {"E4M3": "kFloat8E4M3", "E5M2": "kFloat8E5M2"}
_FORMATS = [f"{blocks}FP8{each}" for blocks in ("", "MX") for each in _ELEMENTS]


def fake_quantize(
    tensor: torch.Tensor, fp8_format: str, out: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Returns the tensor after a cast to a format and back, or writes it into ``out``.

    ``fp8_format``: FP8E4M3 or FP8E5M2 with a scale of the tensor's amax, MXFP8E4M3 or MXFP8E5M2.
    """
    among("fake_quantize", "fp8_format", fp8_format, _FORMATS)
    require_core("fake_quantize")
    dtype = _C.DType.__members__[_ELEMENTS[fp8_format[-4:]]]
    if fp8_format.startswith("MX"):
        quantizer = _C.MXFP8Quantizer(dtype)
    else:
        quantizer = _C.Float8CurrentScalingQuantizer(dtype, tensor.device)
    values = quantizer(tensor).dequantize()
    if out is None:
        return values
    out.copy_(values)
    return None


class FakeQuant(TEConfigAPIMapper):
    """Casts operands to ``quant_format`` and back, and runs the GEMM in high precision.

    The configured feature FakeQuant supports more formats.
    """

    def _supported_formats(self) -> list[str]:
        """Returns the values of ``quant_format``; a subclass may return others."""
        return list(_FORMATS)

    @api_method
    def fp8_gemm_enabled(
        self, config: dict, layer_name: str, gemm: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Returns (False, None): the GEMM runs in high precision."""
        return False, None

    @api_method
    def modify_tensor_enabled(
        self, config: dict, layer_name: str, tensor_name: str, gemm: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Returns (True, the next iteration)."""
        return True, iteration + 1

    @api_method
    def modify_tensor(
        self,
        config: dict,
        layer_name: str,
        gemm: str,
        tensor_name: str,
        tensor: torch.Tensor,
        iteration: int,
        default_quantizer: Any = None,
        out: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor | None:
        """Returns the tensor's values in the format.

        Raises UsageError for a ``quant_format`` that is missing or not supported.
        """
        owner = f"{type(self).__name__} for {tensor_name} of {gemm} in {layer_name}"
        among(owner, "quant_format", config.get("quant_format"), self._supported_formats())
        return fake_quantize(tensor, config["quant_format"], out)


def per_tensor_cast(tensor: torch.Tensor, fp8_dtype: _C.DType, out: Any = None) -> Any:
    """Returns the tensor in FP8 scaled by its current amax, or writes it into ``out``."""
    require_core("per_tensor_cast")
    quantizer = _C.Float8CurrentScalingQuantizer(fp8_dtype, tensor.device)
    if out is None:
        return quantizer(tensor)
    quantizer.update_quantized(tensor, out)
    return None


class PerTensorScaling(TEConfigAPIMapper):
    """Casts operands with a scale from their current amax, under delayed scaling."""

    @api_method
    def modify_tensor_enabled(
        self, config: dict, layer_name: str, tensor_name: str, gemm: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Returns (True, the next iteration)."""
        return True, iteration + 1

    @api_method
    def modify_tensor(
        self,
        config: dict,
        layer_name: str,
        gemm: str,
        tensor_name: str,
        tensor: torch.Tensor,
        iteration: int,
        default_quantizer: Any,
        out: Any = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        """Returns the tensor's codes.

        Raises UsageError unless the layer uses delayed scaling.
        """
        require_core(type(self).__name__)
        if not isinstance(default_quantizer, _C.Float8Quantizer):
            owner = f"{type(self).__name__} for {tensor_name} of {gemm} in {layer_name}"
            expected = "a Float8Quantizer: it goes with DelayedScaling only"
            raise refusal(owner, "the layer's quantizer", expected, default_quantizer)
        return per_tensor_cast(tensor, default_quantizer.dtype, out)


class Scheduled(TEConfigAPIMapper):
    """Inspects tensors in the iterations of ``freq``, ``start_step``, ``end_step`` or
    ``start_end_list``."""

    @api_method
    def inspect_tensor_enabled(
        self, config: dict, layer_name: str, tensor_name: str, iteration: int
    ) -> tuple[bool, int | None]:
        """Returns whether the schedule has the iteration, and the next one that it has."""
        return next_enabled_iter(
            config.get("start_step"),
            config.get("end_step"),
            config.get("start_end_list"),
            config.get("freq", 1),
            iteration,
        )


class DumpTensors(Scheduled):
    """Saves tensors with ``torch.save`` in the run's folder, one file per tensor.

    ``tensor_dumps/rank_0/iter_000100/<layer>_<tensor>.pt`` has a dictionary: ``high_precision``
    if ``high_precision_tensor`` is set, ``quantized`` if ``quantized_tensor`` is. The configured
    feature DumpTensors writes other files, which ``telens`` reads.
    """

    @api_method
    def inspect_tensor(
        self,
        config: dict,
        layer_name: str,
        tensor_name: str,
        iteration: int,
        tp_group: torch.distributed.ProcessGroup | None = None,
        tensor: torch.Tensor | None = None,
        rowwise_quantized_tensor: Any = None,
        columnwise_quantized_tensor: Any = None,
        quantizer: Any = None,
        tp_size: int = 1,
    ) -> None:
        """Saves the configured tensors that exist."""
        quantized = rowwise_quantized_tensor
        if quantized is None:
            quantized = columnwise_quantized_tensor
        found = {
            "high_precision": tensor if config.get("high_precision_tensor") else None,
            "quantized": quantized if config.get("quantized_tensor") else None,
        }
        found = {name: each.detach().clone() for name, each in found.items() if each is not None}
        if found:
            torch.save(found, self._path(layer_name, tensor_name, iteration))

    def _path(self, layer_name: str, tensor_name: str, iteration: int) -> Path:
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        folder = Path(_C.debug.run_path()).parent / "tensor_dumps" / f"rank_{rank}"
        folder = folder / f"iter_{iteration:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.%-]", "_", f"{layer_name}_{tensor_name}")
        return folder / f"{name}.pt"


class LogsStatistics(Scheduled):
    """Records ``stats`` of the selected tensors on a schedule, over micro-batches and ranks.

    A subclass may override ``inspect_tensor`` and call it by ``super()`` with the arguments that
    it got.
    """

    # The session passes its statistics also to a method that does not name them.
    reads_statistics = True

    def _names_of(self, stats: list[Any]) -> list[str]:
        """Returns the names under which the session knows the statistics of a configuration."""
        return [each if isinstance(each, str) else _name_of_mapping(each) for each in stats]

    @api_method
    def inspect_tensor(
        self,
        config: dict,
        layer_name: str,
        tensor_name: str,
        iteration: int,
        tp_group: torch.distributed.ProcessGroup | None = None,
        tensor: torch.Tensor | None = None,
        rowwise_quantized_tensor: Any = None,
        columnwise_quantized_tensor: Any = None,
        quantizer: Any = None,
        tp_size: int = 1,
    ) -> None:
        """Has the statistics of the call's tensor recorded.

        ``config["stats"]`` is read; of the other arguments the session has its own. Raises
        UsageError outside of a session's call, and for statistics that do not exist.
        """
        owner = type(self).__name__
        if offered_here.statistics is None:
            raise _C.UsageError(
                f"{owner}.inspect_tensor: called outside of a session's inspect_tensor; call it by "
                "super() in that method"
            )
        if not config.get("stats"):
            raise _C.UsageError(f"{owner} in {layer_name}: stats is missing; list statistics")
        reason = offered_here.statistics.want(*self._names_of(config["stats"]))
        if reason:
            get_logger().log_message(
                f"{owner}: {tensor_name}: {reason}", layer_name, extra_cachable_args=tensor_name
            )


def _name_of_mapping(stat: dict) -> str:
    """``{name: {key: value}}`` as the session writes it: name_key_value."""
    ((name, options),) = stat.items()
    return "_".join([name, *(f"{key}_{value}" for key, value in (options or {}).items())])


class LogTensorStats(LogsStatistics):
    """Records statistics of tensors before quantization: min, max, mean, std, cur_amax, ..."""


class LogFp8TensorStats(LogsStatistics):
    """Records statistics of casts to FP8: underflows%, scale_inv_min, mse, mxfp8_mse, ..."""


_PREFIX = "nvfp4_"


class LogNvfp4TensorStats(LogsStatistics):
    """Records statistics of casts to NVFP4: underflows% and mse."""

    def get_stat_with_prefix(self, stat: str) -> str:
        """Returns the format-independent name of a statistic."""
        return stat if stat.startswith(_PREFIX) else f"{_PREFIX}{stat}"

    def _names_of(self, stats: list[Any]) -> list[str]:
        return [self.get_stat_with_prefix(each) for each in stats]
