"""Runs scripts written for Transformer Engine unchanged.

python -m telens.run_as_te [--config debug.yaml] script.py arguments...

While such a script runs, ``transformer_engine``, ``nvdlfw_inspect`` and their modules resolve to
telens modules (``install``); an installed package of that name is neither changed nor loaded. With
``--config`` a debug session observes the script's layers.
"""

from telens._load import require_core

require_core(__name__)

from telens.run_as_te.names import install  # noqa: E402

__all__ = ["install"]
