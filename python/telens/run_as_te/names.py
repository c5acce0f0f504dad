"""The import hook that maps modules of Transformer Engine and nvdlfw_inspect to telens modules."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from telens import _C, __version__
from telens._names import nearest
from telens.run_as_te.table import ADVICE, CLASSES, MODULES, PACKAGES

__all__ = ["after_import", "install"]


def install() -> None:
    """Makes this process import telens modules under Transformer Engine's names.

    Writes no files; a second call changes nothing. Raises UsageError if one of the packages has
    already been imported: names of two libraries would be mixed.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    loaded = sorted(name for name in PACKAGES if name in sys.modules)
    if loaded:
        raise _C.UsageError(
            f"run_as_te: {loaded[0]} has been imported already; install before anything imports it"
        )
    sys.meta_path.insert(0, _Finder())


class _Alias(types.ModuleType):
    """Replaces one of their modules; its attributes come from telens modules."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._answering = [each for each in MODULES[name] if _exists(each)]

    def __getattr__(self, name: str) -> Any:
        path = f"{self.__name__}.{name}"
        if _has_answer(path):
            return importlib.import_module(path)
        for module in map(importlib.import_module, self._answering):
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(_lacks(path))

    def __dir__(self) -> Iterable[str]:
        return sorted(_names_in(self.__name__) | {"__version__"})


def _name_classes() -> None:
    """Sets ``__module__`` of layer classes to the module that they have in Transformer Engine.

    Models use it to recognize its layers, and so do pickles.
    """
    layers = importlib.import_module("telens.pytorch.modules")
    for name, path in CLASSES.items():
        getattr(layers, name).__module__ = path


def _has_answer(path: str) -> bool:
    """Returns whether the name is a mapped module."""
    answering = MODULES.get(path)
    return answering is not None and (not answering or any(map(_exists, answering)))


@functools.cache
def _exists(module: str) -> bool:
    """Returns whether the telens module exists."""
    return importlib.util.find_spec(module) is not None


def _file(alias: str) -> str:
    """Returns the path of the module's replacement; scripts look for the package's folder."""
    answering = next(filter(_exists, MODULES[alias]), "telens")
    return importlib.util.find_spec(answering).origin


def _names_in(alias: str) -> set[str]:
    """Returns the public names and submodules of a mapped module."""
    inside = filter(_has_answer, (path for path in MODULES if path.startswith(f"{alias}.")))
    found = {path.removeprefix(f"{alias}.").partition(".")[0] for path in inside}
    for answering in filter(_exists, MODULES[alias]):
        module = importlib.import_module(answering)
        found.update(getattr(module, "__all__", None) or (n for n in dir(module) if n[0] != "_"))
    return found


def _lacks(path: str) -> str:
    """Returns the message for a missing name."""
    parent, _, name = path.rpartition(".")
    advice = next((ADVICE[part] for part in path.split(".")[1:] if part in ADVICE), None)
    known = _names_in(parent) if _has_answer(parent) else ()
    return f"telens has no {path}{nearest(name, known)}{'; ' + advice if advice else ''}"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of the table and raises a helpful error for other modules of these
    packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        if not _has_answer(fullname):
            # .name is not set: import would otherwise replace this message.
            raise ModuleNotFoundError(_lacks(fullname))
        # A package, so that `from x import y` looks here for a missing y.
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=_file(fullname), is_package=True
        )
        spec.submodule_search_locations = [os.path.dirname(spec.origin)]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Alias(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        package = module.__name__.partition(".")[0]
        if package == "nvdlfw_inspect":
            _C.debug.set_terminal_prefix("NVDLFW INSPECT - ")  # its users look it up
        module.__version__ = _version(package)
        module.__file__ = module.__spec__.origin
        if module.__name__ == "transformer_engine":  # `import transformer_engine` loads these
            for name in ("common", "pytorch"):
                setattr(module, name, importlib.import_module(f"{module.__name__}.{name}"))
        if module.__name__ == "transformer_engine.pytorch":
            _name_classes()
            importlib.import_module("telens.pytorch.layers.arguments").reject_ambiguous_bias()

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterator[importlib.metadata.Distribution]:
        """The answer of importlib.metadata about the mapped packages."""
        asked = getattr(context, "name", None)
        for package in PACKAGES:
            if asked is None or asked.replace("-", "_").lower() == package:
                yield _Distribution(package)


class _Distribution(importlib.metadata.Distribution):
    """A distribution without files."""

    def __init__(self, package: str) -> None:
        self._package = package

    def read_text(self, filename: str) -> str | None:
        if filename == "top_level.txt":  # importlib.metadata.packages_distributions asks for it
            return f"{self._package}\n"
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {self._package}\nVersion: {_version(self._package)}\n"

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(
            f"{self._package}: telens replaces it and does not include such files"
        )


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Calls a function after a module has been imported."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act
        self._loader: importlib.abc.Loader | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        found = (
            finder.find_spec(fullname, path, target)
            for finder in sys.meta_path
            if finder is not self and hasattr(finder, "find_spec")
        )
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._act()


@contextlib.contextmanager
def after_import(name: str, act: Callable[[], Callable[[], None]]) -> Iterator[None]:
    """Runs the block and calls ``act`` when a module of this name is or has been imported.

    The function returned by ``act`` is called at the end of the block.
    """
    with contextlib.ExitStack() as stack:

        def run() -> None:
            stack.callback(act())

        if name in sys.modules:
            run()
        else:
            finder = _AfterImport(name, run)
            sys.meta_path.insert(0, finder)
            stack.callback(sys.meta_path.remove, finder)
        yield


def _version(package: str) -> str:
    """The version whose names are provided, followed by the telens version."""
    return f"{PACKAGES[package]}+telens.{__version__}"
