"""Attaches TELens in a process that ``telens run`` has started, once it imports torch.

``telens run`` puts this folder at the front of PYTHONPATH. Processes that do not import torch, such
as launchers, pay for nothing but this file.
"""

import atexit
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torch as usual, and attaches after its import."""

    def find_spec(self, fullname, path, target=None):
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            importlib.import_module("telens.attach.everywhere").attach_from_environment()
        except Exception as error:  # a debug tool does not end a training
            print(f"telens run: not attached: {error}", file=sys.stderr)


def _import_shadowed():
    """Imports the sitecustomize that this one hides, if there is one."""
    path = list(sys.path)
    sys.path[:] = [each for each in path if os.path.abspath(each or ".") != _FOLDER]
    own = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if own is not None:
            sys.modules["sitecustomize"] = own
    finally:
        sys.path[:] = path


def _run_files(folder):
    """Returns the paths of the run files below a folder, which need not exist."""
    return {
        os.path.join(path, name)
        for path, _, names in os.walk(folder)
        for name in names
        if name.endswith(".h5")
    }


def _report_nothing_recorded(log_dir, before):
    """Registered in the process of the command, which ends after the processes it starts."""
    watching = sys.modules.get("telens.attach.watching")
    # A program that calls telens.watch itself records into its own folder.
    has_watched = watching is not None and watching.has_watched()
    if not has_watched and _run_files(log_dir) == before:
        print(
            f"telens run: nothing was recorded in {log_dir}: no torch model ran a training "
            "forward (in training mode, with gradients) in this program",
            file=sys.stderr,
        )


_import_shadowed()
if "TELENS_ATTACH" in os.environ:
    sys.meta_path.insert(0, _AfterTorch())
    _options = json.loads(os.environ["TELENS_ATTACH"])
    if _options.get("process") == os.getpid():
        _log_dir = _options["log_dir"]
        atexit.register(_report_nothing_recorded, _log_dir, _run_files(_log_dir))
