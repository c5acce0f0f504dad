"""The TELens session that records a training of Transformer Engine."""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import nvdlfw_inspect.api as debug_api
import torch
import torch.distributed
from nvdlfw_inspect.config_manager import ConfigManager
from nvdlfw_inspect.logging import get_logger
from nvdlfw_inspect.registry import Registry

from telens import _C
from telens.debug import sessions
from telens.debug.calls import TENSORS
from telens.te_features.configuration import (
    FEATURES,
    PRECISION,
    PREFIX,
    reads_codes,
    session_config,
)
from telens.te_features.operands import operand_of, precision_of, quantizer_of

__all__ = ["PrecisionWatch", "Session", "Shown", "current", "end", "step"]

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


# Folder of the run file and the text log below nvdlfw_inspect's log_dir. nvdlfw_inspect writes a
# text log of the same name as TELens into log_dir itself.
_FOLDER = "telens_logs"
_INPUTS = ("activation", "weight", "gradient")

_session: Session | None = None


@dataclass(frozen=True)
class Shown:
    """The arguments of Transformer Engine's ``inspect_tensor``."""

    tensor_name: str
    tensor: torch.Tensor | None
    rowwise: Any = None
    columnwise: Any = None
    quantizer: Any = None
    tp_group: Any = None
    tp_size: int | None = None


class Session:
    """A session for one ``initialize`` ... ``end_debug`` of nvdlfw_inspect.

    Parameters
    ----------
    manager
        ``nvdlfw_inspect.api.DEBUG_MANAGER``
    """

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self._reads_codes = reads_codes(manager.config_file)
        self._answers_pairs, self._passes_operands = _hook_versions()
        self._own: dict[str, dict[str, dict]] = {}  # features with our prefix, by layer
        self._weights: dict[str, int] = {}  # layer: tick in which its weight was read
        self._waiting: dict[tuple[str, str], Shown] = {}  # (layer, tensor): without its copies
        self._precision = PrecisionWatch()
        self._group: Any = None
        self._failed = False
        sessions.initialize(
            session_config(manager.config_file),
            log_dir=os.path.join(get_logger().root_log_dir, _FOLDER),
            init_training_step=manager._trainer_iteration_count,
        )

    # ---- routing calls

    def is_first(self, config: dict) -> bool:
        """Returns True if this is the config of the first of our features in its section."""
        for section in ConfigManager.configs:
            own = list(_own_features_of(section.extension_config).values())
            if any(each is config for each in own[1:]):
                return False
        return True

    def inspects(self, layer: str, tensor_name: str, iteration: int) -> Any:
        """Returns the answer to ``inspect_tensor_enabled``."""
        return self._answer(self._is_inspected(layer, tensor_name, iteration), iteration)

    def inspects_copies(self, layer: str, tensor_name: str, iteration: int) -> Any:
        """Returns the answer to ``inspect_tensor_postquantize_enabled``.

        True only for versions that do not pass the quantized copies to ``inspect_tensor``.
        """
        needed = not self._passes_operands and tensor_name in _INPUTS
        needed = needed and (self._reads_codes or self._is_precision_due(layer, iteration))
        return self._answer(needed and self._is_inspected(layer, tensor_name, iteration), iteration)

    def _answer(self, enabled: bool, iteration: int) -> Any:
        # Versions before 2.7 take a pair for True.
        return (enabled, iteration + 1) if self._answers_pairs else enabled

    def _is_inspected(self, layer: str, tensor_name: str, iteration: int) -> bool:
        if not self._records() or tensor_name not in TENSORS:
            return False
        self._follow(iteration)
        if tensor_name in _INPUTS and self._is_precision_due(layer, iteration):
            return True
        asked = sessions.transformer_engine.inspect_tensor_enabled(layer, tensor_name=tensor_name)
        return bool(asked)

    def _follow(self, iteration: int) -> None:
        """Takes over iteration and reduction group, which the program may set at any time."""
        if _C.debug.iteration() != iteration:
            sessions.initialize_training_step(iteration)
        group = debug_api.get_tensor_reduction_group()
        if group is not self._group:
            self._group = group
            sessions.set_tensor_reduction_group(group)

    # ---- tensors

    def inspect(self, feature: str, layer: str, shown: Shown, iteration: int) -> None:
        """Reads a tensor, if ``feature`` is the layer's first one."""
        if not self._accepts(feature, layer) or shown.tensor_name not in TENSORS:
            return
        waits = not self._passes_operands and shown.tensor_name in _INPUTS
        if waits and (self._reads_codes or self._is_precision_due(layer, iteration)):
            self._flush(layer, shown.tensor_name, iteration)
            self._waiting[layer, shown.tensor_name] = shown
        else:
            self._guarded(self._read, layer, shown, iteration)

    def inspect_copy(
        self, feature: str, layer: str, tensor_name: str, copy: Any, rowwise: bool, iteration: int
    ) -> None:
        """Adds a quantized copy to the tensor that was shown before it.

        The columnwise copy is the last one.
        """
        if not self._accepts(feature, layer) or tensor_name not in _INPUTS:
            return
        # A weight that is stored in low precision is not shown before its copies.
        shown = self._waiting.get((layer, tensor_name), Shown(tensor_name, None))
        change = {"rowwise": copy} if rowwise else {"columnwise": copy}
        quantizer = getattr(copy, "_quantizer", None)
        self._waiting[layer, tensor_name] = replace(shown, quantizer=quantizer, **change)
        if not rowwise:
            self._flush(layer, tensor_name, iteration)

    def _flush(self, layer: str, tensor_name: str, iteration: int) -> None:
        shown = self._waiting.pop((layer, tensor_name), None)
        if shown is not None:
            self._guarded(self._read, layer, shown, iteration)

    def _accepts(self, feature: str, layer: str) -> bool:
        return self._records() and feature == next(iter(self._own_features(layer)), None)

    def _records(self) -> bool:
        return not self._failed and _C.debug.is_initialized()

    def _own_features(self, layer: str) -> dict[str, dict]:
        if layer not in self._own:
            self._own[layer] = _own_features_of(ConfigManager.get_config_for_layer(layer))
        return self._own[layer]

    def _is_precision_due(self, layer: str, iteration: int) -> bool:
        options = self._own_features(layer).get(f"{PREFIX}{PRECISION}")
        return options is not None and iteration % int(options.get("freq", 1)) == 0

    def _read(self, layer: str, shown: Shown, iteration: int) -> None:
        self._follow(iteration)
        if self._is_precision_due(layer, iteration) and shown.tensor_name in _INPUTS:
            copies = [
                precision_of(shown.tensor if copy is None else copy)
                for copy in (shown.rowwise, shown.columnwise)
            ]
            self._precision.note(
                layer, shown.tensor_name, *copies, shown.quantizer is not None, iteration
            )
        if shown.tensor_name == "weight":
            # Micro-batches read the same weight.
            if self._weights.get(layer) == _C.debug.tick():
                return
            self._weights[layer] = _C.debug.tick()
        operands = shown.tensor_name in _INPUTS and (self._reads_codes or shown.tensor is None)
        rowwise = operand_of(shown.rowwise, False) if operands else None
        if shown.tensor is None and rowwise is None:
            return
        sessions.transformer_engine.inspect_tensor(
            layer,
            tensor_name=shown.tensor_name,
            tensor=None if shown.tensor is None else shown.tensor.detach(),
            tp_group=shown.tp_group,
            tp_size=_size_of(shown.tp_group, shown.tp_size),
            rowwise_quantized_tensor=rowwise,
            columnwise_quantized_tensor=operand_of(shown.columnwise, True) if operands else None,
            quantizer=quantizer_of(shown.quantizer) if operands else None,
        )

    def _guarded(self, call: Callable, *args: Any) -> None:
        """Calls a function: an error in it ends the recording with a warning, not the training."""
        try:
            call(*args)
        except _C.RunStopped:  # a feature was configured to stop the run
            raise
        except Exception as error:
            self._failed = True
            warnings.warn(
                f"telens.te_features: stopped recording after an error: {error}", stacklevel=2
            )

    # ---- the end of an iteration

    def step(self) -> None:
        """Ends the iteration that nvdlfw_inspect has ended."""
        for layer, tensor_name in list(self._waiting):
            self._flush(layer, tensor_name, _C.debug.iteration())
        if _C.debug.is_initialized():
            sessions.step()


def _own_features_of(section: dict) -> dict[str, dict]:
    """Returns the features with our prefix that a section enables, with their configs."""
    return {
        name: options
        for name, options in (section.get("transformer_engine") or {}).items()
        if name.startswith(PREFIX)
        and name.removeprefix(PREFIX) in FEATURES
        and options.get("enabled")
    }


def current() -> Session:
    """Returns the session of the running nvdlfw_inspect; opens it in the first call."""
    global _session
    manager = debug_api.DEBUG_MANAGER
    if manager is None:
        raise _C.UsageError(
            "telens.te_features: nvdlfw_inspect is not initialized; call "
            "nvdlfw_inspect.api.initialize first"
        )
    if _session is None or _session.manager is not manager:
        _session = Session(manager)
    return _session


def step() -> None:
    """Called by nvdlfw_inspect after its step()."""
    if _session is not None:
        _session.step()


def end() -> None:
    """Called by nvdlfw_inspect in its end_debug()."""
    global _session
    if _session is not None:
        _session = None
        sessions.end_debug()


def _hook_versions() -> tuple[bool, bool]:
    """Returns two properties of the installed Transformer Engine.

    - routing calls may be answered by (enabled, next iteration)
    - ``inspect_tensor`` receives the quantized copies
    """
    hooks = Registry.data["transformer_engine"].api
    default = getattr(hooks._default_api_impl, "inspect_tensor", None)
    passed = inspect.signature(default).parameters if default is not None else {}
    pairs = "handle_multi_feature_output" in vars(type(hooks))
    return pairs, "rowwise_quantized_tensor" in passed


def _size_of(group: Any, size: int | None) -> int:
    """Returns the size of a tensor-parallel group; versions before 2.12 do not pass it."""
    if size is not None or group is None:
        return size or 1
    return torch.distributed.get_world_size(group) if torch.distributed.is_initialized() else 1
