"""Runs TELens' statistics inside NVIDIA's Transformer Engine, through its own debug features.

    import nvdlfw_inspect.api as debug_api
    import telens

    debug_api.initialize(
        "debug.yaml", feature_dirs=[telens.te_features.path()], log_dir="logs"
    )

Features of the config with the prefix ``TELens``, such as ``TELensLogTensorStats``, record into a
run file in ``logs/telens_logs``, which the ``telens`` command reads.
"""

from __future__ import annotations

import pathlib

__all__ = ["begin", "path"]


def path() -> str:
    """Returns the folder for ``feature_dirs`` of ``nvdlfw_inspect.api.initialize``.

    The folder also loads Transformer Engine's hook definitions, so it may be the only one in the
    list. Add Transformer Engine's folder to use its own features too.
    """
    return str(pathlib.Path(__file__).with_name("feature_folder"))


def begin() -> None:
    """Opens the run file now, instead of in the first forward of a selected layer.

    Call it on every rank after ``nvdlfw_inspect.api.initialize``, if ranks begin their first
    forward one after the other, as the stages of a pipeline do: ranks open the file together.

    Raises
    ------
    telens.UsageError
        if nvdlfw_inspect is not initialized, or a session of ``telens`` is active
    telens.ConfigError
        if a feature with the prefix ``TELens`` is configured incorrectly
    """
    from telens.te_features import session

    session.current()
