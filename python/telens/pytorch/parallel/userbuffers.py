"""Userbuffers: communication of tensor-parallel layers that overlaps with their GEMMs."""

from __future__ import annotations

import enum
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from telens import _C
from telens._names import refusal, rejects_bools
from telens.common.field_types import check_sizes

__all__ = ["UserBufferQuantizationMode", "destroy_ub", "initialize_ub"]

_BACKENDS = ("gloo", "mpi", "nccl")


class UserBufferQuantizationMode(enum.Enum):
    """The precision of the GEMMs to which settings apply."""

    NONE = "none"
    FP8 = "fp8"


# Settings by name, by GEMM.
_Settings = Mapping[str, Mapping[str, Any]]


def is_ub_initialized() -> bool:
    """Returns whether settings are active: after `initialize_ub`, until `destroy_ub`."""
    return _C.is_ub_initialized()


@rejects_bools
def initialize_ub(
    shape: Sequence[int],
    tp_size: int,
    use_fp8: bool = False,
    quantization_modes: Sequence[UserBufferQuantizationMode] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    ub_cfgs: _Settings | Sequence[_Settings | None] | None = None,
    bootstrap_backend: str | None = None,
    with_cublasmp: bool = False,
) -> None:
    """Sets how layers with ``ub_*`` arguments overlap communication with GEMMs.

    Every rank of ``torch.distributed`` calls it with the same arguments, before it constructs those
    layers. Collectives of torch move the rows within the layers' ``tp_group``. No buffers are
    reserved, so inputs may have any size.

    Parameters
    ----------
    shape
        ``[sequence length * batch size, hidden size]`` over all ranks; checked, but not used
    tp_size
        size of a tensor-parallel group; divides the number of ranks
    use_fp8
        older form of ``quantization_modes``: True for [FP8], False for [NONE]
    quantization_modes
        the precisions of GEMMs for which settings are stored
    dtype
        dtype of unquantized tensors; checked, but not used
    ub_cfgs
        ``{GEMM: {setting: value}}``, or a list with one such mapping (or None) per entry of
        ``quantization_modes``. GEMMs are ``qkv_fprop``, ``qkv_dgrad``, ``qkv_wgrad``, and likewise
        for ``proj``, ``fc1`` and ``fc2``. Missing settings have Transformer Engine's defaults.
        ``method`` is ``ring_exchange``, ``pipeline``, ``bulk`` or ``external``; ``num_splits`` is
        the number of parts of a ``pipeline``; ``is_reduce_scatter`` must match GEMM and method.
        ``num_sm``, ``cga_size``, ``set_sm_margin``, ``aggregate``, ``atomic_gemm``, ``use_ce``,
        ``fp8_buf``, ``comm_priority``, ``gemm_priority`` and ``pipeline_rs_overlap_first_gemm``
        configure kernels of Transformer Engine; they are checked and have no effect
    bootstrap_backend
        ``gloo``, ``nccl`` or ``mpi``; checked, but not used
    with_cublasmp
        must be False

    Raises UsageError if it was called before without `destroy_ub`, if ranks pass different
    settings, and for invalid arguments.
    """
    modes = _modes(use_fp8, quantization_modes)
    settings = _settings_by_mode(ub_cfgs, modes)
    _check_types(shape, tp_size, dtype, settings)
    if with_cublasmp:
        raise _C.UsageError("initialize_ub: with_cublasmp=True is not supported: leave it out")
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise _C.UsageError(
            "initialize_ub: torch.distributed is not initialized; call "
            "torch.distributed.init_process_group first"
        )
    _check_backend(bootstrap_backend)
    check_sizes("initialize_ub", tp_size=tp_size)
    if not is_ub_initialized():
        text = f"has shape={shape}, tp_size={tp_size} and {_in_words(settings)}"
        _C.compare_ub(text, torch.distributed.group.WORLD)
    precisions = [(mode is UserBufferQuantizationMode.FP8, each) for mode, each in settings]
    ranks = torch.distributed.get_world_size()
    notes = _C.initialize_ub(list(shape), tp_size, ranks, precisions)
    for note in notes:
        warnings.warn(note, stacklevel=2)


def destroy_ub() -> None:
    """Removes the settings of `initialize_ub`. Overlapping layers then require a new call."""
    _C.destroy_ub()


def _modes(use_fp8: bool, given: Any) -> list[UserBufferQuantizationMode]:
    if not given:
        if use_fp8:
            warnings.warn(
                "initialize_ub: use_fp8 is the older form of quantization_modes="
                "[UserBufferQuantizationMode.FP8]",
                DeprecationWarning,
                stacklevel=3,
            )
        return [UserBufferQuantizationMode.FP8 if use_fp8 else UserBufferQuantizationMode.NONE]
    expected = "a list of UserBufferQuantizationMode"
    if not isinstance(given, (list, tuple)):
        raise refusal("initialize_ub", "quantization_modes", expected, given)
    for mode in given:
        if not isinstance(mode, UserBufferQuantizationMode):
            raise refusal("initialize_ub", "quantization_modes", expected, mode)
    return list(given)


def _settings_by_mode(
    given: Any, modes: list[UserBufferQuantizationMode]
) -> list[tuple[UserBufferQuantizationMode, dict[str, dict[str, Any]]]]:
    by_mode = [given] * len(modes) if given is None or isinstance(given, Mapping) else given
    if not isinstance(by_mode, (list, tuple)):
        raise refusal("initialize_ub", "ub_cfgs", "a mapping, or a list of mappings", given)
    if len(by_mode) != len(modes):
        raise _C.UsageError(
            f"initialize_ub: ub_cfgs has {len(by_mode)} mappings and quantization_modes "
            f"{len(modes)} entries; give one for each, or one mapping for all"
        )
    return [(mode, _plain(each)) for mode, each in zip(modes, by_mode, strict=True)]


def _plain(settings: _Settings | None) -> dict[str, dict[str, Any]]:
    """Converts to plain dictionaries of dictionaries."""
    expected = "a mapping of GEMMs to mappings of settings"
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise refusal("initialize_ub", "ub_cfgs", expected, settings)
    for of_gemm in settings.values():
        if not isinstance(of_gemm, Mapping):
            raise refusal("initialize_ub", "ub_cfgs", expected, of_gemm)
    return {gemm: dict(of_gemm) for gemm, of_gemm in settings.items()}


def _check_backend(backend: str | None) -> None:
    if backend is None:
        return
    if backend not in _BACKENDS:
        raise refusal("initialize_ub", "bootstrap_backend", f"one of {_BACKENDS}", backend)
    if not torch.distributed.is_backend_available(backend):
        raise _C.UsageError(
            f"initialize_ub: bootstrap_backend is {backend!r}, and this torch was built without it"
        )


def _in_words(settings: list[tuple[UserBufferQuantizationMode, dict[str, dict[str, Any]]]]) -> str:
    return ", ".join(
        f"{mode.name}: {json.dumps(of_mode, sort_keys=True, default=str)}"
        for mode, of_mode in settings
    )


def _check_types(shape: Any, tp_size: Any, dtype: Any, settings: Any) -> None:
    if not isinstance(tp_size, int):
        raise refusal("initialize_ub", "tp_size", "an integer", tp_size)
    listed = isinstance(shape, Sequence) and not isinstance(shape, str)
    if not listed or not all(isinstance(each, int) for each in shape):
        raise refusal("initialize_ub", "shape", "a list of two integers", shape)
    if not isinstance(dtype, torch.dtype):
        raise refusal("initialize_ub", "dtype", "a torch.dtype", dtype)
    for _, of_mode in settings:
        for gemm, of_gemm in of_mode.items():
            for name, value in of_gemm.items():
                where = f"ub_cfgs[{gemm!r}][{name!r}]"
                if not isinstance(value, bool | int | str):
                    raise refusal("initialize_ub", where, "a boolean, number or name", value)
                if not (isinstance(gemm, str) and isinstance(name, str)):
                    raise refusal("initialize_ub", where, "named by strings", value)
