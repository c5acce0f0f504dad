"""The session API of a training program."""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import pathlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed

from telens import _C
from telens._names import rejects_bools
from telens.debug import arguments, exits, layer_names, model_state, ranks
from telens.debug import logging as loggers
from telens.debug.calls import LayerCalls
from telens.debug.configuration import check_loggers, options_of
from telens.debug.feature_folders import run_feature_files
from telens.debug.logging import get_logger, printable
from telens.debug.registry import Registry, take_registered

__all__ = [
    "check_collective",
    "end_debug",
    "explain_features",
    "get_tensor_reduction_group",
    "initialize",
    "initialize_training_step",
    "list_features",
    "log_message",
    "log_tensor_stats",
    "record",
    "run_path",
    "session",
    "set_tensor_reduction_group",
    "set_weight_tensor_tp_group_reduce",
    "step",
    "transformer_engine",
]

transformer_engine = LayerCalls()

# Last value of set_weight_tensor_tp_group_reduce, for feature classes that do their own reduction.
_weights_are_reduced = True

# Owners of the features that the running session's feature_dirs registered.
_session_owners: list[str] = []


def initialize(
    config_file: str | os.PathLike | dict | None = "",
    feature_dirs: str | os.PathLike | Iterable[str | os.PathLike] | None = None,
    statistics_logger: Any = None,
    log_dir: str | os.PathLike = ".",
    init_training_step: int = 0,
    tb_writer: Any = None,
    default_logging_enabled: bool = False,
    *,
    recording: dict[str, Any] | None = None,
) -> None:
    """Begins a session. Call it once on every rank.

    Parameters
    ----------
    config_file
        path of the YAML file, or the configuration as a dict; "" or None for no configuration
    feature_dirs
        folders searched for feature classes (.py) and plugins (.so); "" for none
    statistics_logger
        a ``BaseLogger``, instead of ``tb_writer``
    log_dir
        directory of the run file and the text logs
    init_training_step
        the number of the first iteration
    tb_writer
        a TensorBoard ``SummaryWriter``, instead of the text file of statistics
    default_logging_enabled
        also writes the text file of statistics
    recording
        ``{"on_full": "drop" or "block", "max_size": bytes}``

    Raises
    ------
    telens.ConfigError
        with file, line and column of every error in the configuration
    telens.UsageError
        if a session is already active; after an error no session is active
    """
    rank, world_size, group = ranks.world()
    if _C.debug.is_initialized():
        _C.debug.refuse_to_initialize(group)
        raise _C.UsageError(
            "debug.initialize: there is a session already; call debug.end_debug() first"
        )
    take_registered()
    if "nvdlfw_inspect" in sys.modules:
        _C.debug.set_terminal_prefix("NVDLFW INSPECT - ")  # its users look it up
    try:
        with _refusing_for_all(group):
            check_loggers(statistics_logger, tb_writer)
            if not isinstance(default_logging_enabled, bool):
                raise _C.UsageError(
                    "debug.initialize: default_logging_enabled must be a boolean, not "
                    f"{default_logging_enabled!r}"
                )
            options = options_of(config_file, feature_dirs, log_dir, init_training_step, recording)
            for folder in options["feature_dirs"]:
                run_feature_files(pathlib.Path(folder))
            core_options = _C.debug.InitializeOptions(
                **options,
                statistics_logger=loggers.first_logger(statistics_logger, tb_writer),
                tb_writer=tb_writer,
                default_logging_enabled=default_logging_enabled,
                rank=rank,
                world_size=world_size,
                world=group,
            )
        _session_owners.extend(take_registered())
        _C.debug.initialize(core_options)
    except BaseException:
        _session_owners.extend(take_registered())
        _forget_session_features()
        raise
    loggers.note_beginning(statistics_logger, tb_writer)
    ranks.note_beginning(group)
    ranks.begin_comparisons(group)
    model_state.begin()
    exits.note_beginning()
    layer_names.note_beginning()
    exits.end_at_exit(end_debug)


@rejects_bools
def step(loss: float | torch.Tensor | None = None, **scalars: bool | float | torch.Tensor) -> None:
    """Ends an iteration. Call it after every forward-backward. Does nothing without a session.

    ``scalars``: more numbers of this iteration, such as ``lr=`` and ``grad_norm=``. They are
    recorded under their names, as by ``record``.
    """
    # Reading a loss from a GPU synchronizes, so it is read only if it is recorded.
    recorded = loss is not None and _C.debug.is_initialized()
    if _C.debug.is_initialized():
        for name, value in scalars.items():
            _C.debug.record(name, arguments.number("debug.step", name, value))
            if loss is None and _looks_like_loss(name):
                warnings.warn(
                    f"debug.step: {name}={value} is recorded under that name, but no 'loss' is "
                    f"recorded (did you mean 'loss'?)",
                    UserWarning,
                    stacklevel=2,
                )
        loggers.attach_new_loggers()
        for namespace in Registry.namespaces():
            namespace.step()
    exits.note_step()
    layer_names.note_step()
    ranks.tell_of_a_late_group()
    model_state.show()
    _C.debug.step(arguments.number("debug.step", "loss", loss) if recorded else None)


def _looks_like_loss(name: str) -> bool:
    """One letter is missing, wrong or extra."""
    return len(name) <= 5 and bool(difflib.get_close_matches(name.lower(), ["loss"], 1, 0.75))


def end_debug() -> None:
    """Ends the session and flushes its files. Does nothing without a session.

    If an exception is propagating, the run records it as the reason of its end.
    """
    if _C.debug.is_initialized():
        loggers.attach_new_loggers()
        _warn_if_no_layer_ran()
        layer_names.note_step()
        layer_names.note_end()
        ranks.end_comparisons()
        model_state.end()
    try:
        _end_namespaces()
    finally:
        _end_core()


def _warn_if_no_layer_ran() -> None:
    # A failed program may not have reached its first forward.
    if _C.debug.any_layer_ran() or Registry.was_asked or exits.leaving_exception():
        return
    level = logging.WARNING if ranks.rank() == 0 else logging.INFO
    _C.debug.log_message(layer_names.no_layer_message(), "", level, "")


def _end_namespaces() -> None:
    if _C.debug.is_initialized():
        for namespace in Registry.namespaces():
            namespace.end_debug()


def _end_core() -> None:
    global _weights_are_reduced
    try:
        _C.debug.end_debug(exits.leaving_exception())
    finally:
        _weights_are_reduced = True
        Registry.was_asked = False
        exits.note_end()
        loggers.note_end()
        _forget_session_features()
        transformer_engine.forget()


@contextlib.contextmanager
def session(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Calls ``initialize`` with these arguments, and ``end_debug`` at the end of the block."""
    initialize(*args, **kwargs)
    try:
        yield
    finally:
        end_debug()


def run_path() -> str:
    """Returns the folder or file that the session records to; "" if none."""
    return _C.debug.run_path()


def initialize_training_step(train_step: int) -> None:
    """Sets the number of the running iteration. Does nothing without a session."""
    _C.debug.initialize_training_step(
        arguments.index("debug.initialize_training_step", "train_step", train_step)
    )


def record(name: str, value: bool | float | torch.Tensor) -> None:
    """Records a named number for the running iteration in the run file.

    The name ``"loss"`` sets the loss of the iteration, as ``step(loss=)`` does. If an iteration
    gets it both ways, the recorded one is kept, and the first difference causes a warning.
    """
    name = arguments.text("debug.record", "name", name)
    _C.debug.record(name, arguments.number("debug.record", "value", value))


def check_collective(
    name: str,
    sent: torch.Tensor,
    result: torch.Tensor,
    op: str = "sum",
    group: torch.distributed.ProcessGroup | None = None,
) -> None:
    """Passes a user collective to ``CollectiveCheck``. Call it on every rank of the group.

    Parameters
    ----------
    name
        name of the records
    sent
        this rank's input before the collective; a clone if the collective works in place
    result
        this rank's output, of the same dtype
    op
        ``"sum"``, ``"max"``, ``"gather"`` (all-gather along the first dimension),
        ``"reduce_scatter"`` (this rank's rows of the sum) or ``"all_to_all"`` (of equal parts)
    group
        the intended process group; None for every rank
    """
    title = "debug.check_collective"
    name = arguments.text(title, "name", name)
    op = arguments.one_of(title, "op", op, ("sum", "max", "gather", "reduce_scatter", "all_to_all"))
    for argument, tensor in (("sent", sent), ("result", result)):
        if not isinstance(tensor, torch.Tensor):
            raise arguments.refusal(title, argument, "a tensor", tensor)
    if result.dtype != sent.dtype:
        raise arguments.refusal(title, "result", f"a tensor of {sent.dtype}, as sent is", result)
    ranks = torch.distributed.get_world_size(group) if torch.distributed.is_initialized() else 1
    if ranks < 1:
        raise arguments.refusal(title, "group", "a group that this rank belongs to", group)
    if op in ("reduce_scatter", "all_to_all") and sent.numel() % ranks:
        expected = f"a tensor whose elements can be divided among {ranks} ranks"
        raise arguments.refusal(title, "sent", expected, sent)
    expected = {"gather": sent.numel() * ranks, "reduce_scatter": sent.numel() // ranks}.get(
        op, sent.numel()
    )
    if result.numel() != expected:
        raise arguments.refusal(title, "result", f"a tensor of {expected} elements", result)
    if _C.debug.is_initialized():
        _C.debug.check_collective(name, op, sent, result, group)


@rejects_bools
def log_message(
    msg: str,
    layer_name: str | None = None,
    level: int | str = logging.INFO,
    extra_cachable_args: Any = None,
) -> None:
    """Writes a message to the log, once per text, layer and extra arguments.

    ``level``: a level of ``logging``, as number or name.
    """
    get_logger().log_message(msg, layer_name, level, extra_cachable_args)


@rejects_bools
def log_tensor_stats(
    layer_name: str,
    *,
    tensor_name: str,
    tensor: torch.Tensor,
    skip_reduction: bool = False,
    reduction_group: torch.distributed.ProcessGroup | None = None,
    iteration: int | None = None,
) -> dict[str, torch.Tensor]:
    """Logs the statistics that the base feature LogTensorStats selects for this tensor,
    immediately.

    The statistics cover the tensors of every rank in ``reduction_group``, or else the group set by
    ``set_tensor_reduction_group``. Every rank of the group must call this, logs the statistics and
    returns them. Without a group they cover the world, and only the last rank logs and returns
    them. With ``skip_reduction`` each rank logs and returns its own.

    Returns {statistic: 0-dim float tensor on the CPU}; {} if the tensor is not selected, not due or
    empty.
    """
    if not isinstance(tensor, torch.Tensor):
        raise arguments.refusal("debug.log_tensor_stats", "tensor", "a torch.Tensor", tensor)
    return _C.debug.log_tensor_stats(
        layer_name, tensor_name, tensor.detach(), iteration, skip_reduction, reduction_group
    )


def list_features() -> list[str]:
    """Prints the names of the features on rank 0 and returns them."""
    names = _C.debug.list_features()
    if ranks.rank() == 0:
        print("\n".join(map(printable, names)))
    return names


def explain_features(features: str | Iterable[str] = "all") -> str:
    """Prints on rank 0 the purpose and parameters of features, and returns the text.

    ``features``: "all", a name or several; ``transformer_engine.FakeQuant`` or just ``FakeQuant``.
    """
    names = [features] if isinstance(features, str) else list(features)
    text = _C.debug.explain_features(names)
    if ranks.rank() == 0:
        print(text)
    return text


def set_tensor_reduction_group(
    group: torch.distributed.ProcessGroup | None, layer_name: str | None = None
) -> None:
    """Sets the process group that reduces statistics of activations, gradients and outputs.

    Applies to one layer, or to every layer without its own group. Call it on every rank of the
    group, in the same iteration. None restores the default, every rank.
    """
    _C.debug.set_tensor_reduction_group(group, layer_name or "")


def get_tensor_reduction_group() -> torch.distributed.ProcessGroup | None:
    """Returns the process group that reduces statistics of activations, gradients and outputs."""
    return _C.debug.get_tensor_reduction_group()


def set_weight_tensor_tp_group_reduce(enabled: bool) -> None:
    """Sets whether a weight's statistics are reduced over its tensor-parallel group (default: yes).

    If that group has one rank or this is off, they cover the rank only.
    """
    global _weights_are_reduced
    _C.debug.set_weight_tensor_tp_group_reduce(enabled)
    _weights_are_reduced = enabled


def weights_are_reduced() -> bool:
    """Returns the value of ``set_weight_tensor_tp_group_reduce`` in this session."""
    return _weights_are_reduced


@contextlib.contextmanager
def _refusing_for_all(group: torch.distributed.ProcessGroup | None) -> Iterator[None]:
    """Reports a failure of the block before the core is called to the other ranks, so that none
    waits."""
    try:
        yield
    except BaseException:
        _C.debug.refuse_to_initialize(group)
        raise


def _forget_session_features() -> None:
    for owner in _session_owners:
        Registry.forget(owner)
    _session_owners.clear()
