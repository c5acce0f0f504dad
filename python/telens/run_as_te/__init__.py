"""Runs scripts written for Transformer Engine as they are.

python -m telens.run_as_te [--config debug.yaml] script.py arguments...

While such a script runs, ``transformer_engine``, ``nvdlfw_inspect`` and their modules are names of
ours (``install``); an installed package of that name is neither changed nor loaded. With
``--config`` a debug session watches the script's layers.
"""

from telens.run_as_te.names import install

__all__ = ["install"]
