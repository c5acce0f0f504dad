"""``python -m telens.run_as_te [options] script.py arguments...``, or ``-m module``."""

from __future__ import annotations

import argparse
import builtins
import contextlib
import io
import os
import runpy
import sys
import types

from telens import ConfigError, UsageError
from telens.run_as_te.names import install

_DESCRIPTION = """\
Runs a training script unchanged with telens. Scripts for NVIDIA's Transformer Engine find
transformer_engine and nvdlfw_inspect in telens; plain PyTorch scripts train in FP8 with
--convert --recipe NAME. Processes that the script spawns (and does not fork) are not changed:
start each of several ranks through this module, as in
`torchrun -m telens.run_as_te script.py`."""
_EPILOG = """\
With --config, a session observes the script's layers. It names them at a model's first forward,
ends an iteration after each step() of the first torch optimizer that steps, and ends with the
script. It records the loss and, for a Hugging Face Trainer, learning rate and gradient norm.

Example: python -m telens.run_as_te --convert --recipe delayed --config debug.yaml train.py"""


# In errors of torch on a machine without a GPU.
_NO_GPU = (
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "Torch not compiled with CUDA enabled",
    "driver version is insufficient",
)
_NO_GPU_HINT = "telens.run_as_te: --device cpu runs a script for a GPU on the CPU"


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status for an invalid command line. Errors and exits of the script
    propagate."""
    options = _parser().parse_args(arguments)
    try:
        install()
        session = _session_of(options)
    except (ConfigError, UsageError) as error:
        return _refuse(error)
    if not options.module and not os.path.isfile(options.script):
        return _refuse(f"no such script: {options.script}")
    with contextlib.ExitStack() as stack:
        try:
            # Models are converted before the session names their layers.
            stack.enter_context(_device_of(options))
            stack.enter_context(_conversion_of(options))
            stack.enter_context(session)
        except (ConfigError, UsageError) as error:
            return _refuse(error)
        try:
            (_run_module if options.module else _run_script)(options.script, options.arguments)
        except (RuntimeError, AssertionError) as error:
            if options.device is None and any(text in str(error) for text in _NO_GPU):
                if hasattr(error, "add_note"):  # Python >= 3.11
                    error.add_note(_NO_GPU_HINT)
                else:
                    print(_NO_GPU_HINT, file=sys.stderr)
            raise
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m telens.run_as_te",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="YAML", help="debug configuration to watch it with")
    parser.add_argument("--log-dir", metavar="FOLDER", help="directory of the run (default: .)")
    parser.add_argument(
        "--feature-dir",
        action="append",
        default=[],
        metavar="FOLDER",
        help="folder of feature classes or plugins; may be given several times",
    )
    parser.add_argument(
        "--convert",
        action="store_true",
        help="replace each model's linear layers and norms by telens's at its first forward",
    )
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        help="run each model's forward in FP8: delayed, current, mxfp8, block or nvfp4",
    )
    parser.add_argument(
        "--device",
        choices=["cpu"],
        help="cpu: every CUDA device that the script names is the CPU",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, not a file")
    parser.add_argument("script", help="the script, or with -m the module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    return parser


def _refuse(reason: object) -> int:
    print(f"telens.run_as_te: {reason}", file=sys.stderr)
    return 2


def _device_of(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    if options.device is None:
        return contextlib.nullcontext()
    from telens.run_as_te.device import cuda_is_cpu

    return cuda_is_cpu()


def _conversion_of(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    if not options.convert and options.recipe is None:
        return contextlib.nullcontext()
    from telens.run_as_te.converting import converting, recipe_named

    recipe = None if options.recipe is None else recipe_named(options.recipe)
    return converting(recipe, converts=options.convert)


def _session_of(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    if options.config is None:
        if options.feature_dir:
            raise UsageError("--feature-dir: features are run by a session; give its --config too")
        if options.log_dir is not None:
            print(
                "telens.run_as_te: --log-dir: without --config nothing is recorded there",
                file=sys.stderr,
            )
        return contextlib.nullcontext()
    from telens.run_as_te.watching import SessionOptions, watching

    return watching(SessionOptions(options.config, options.log_dir or ".", options.feature_dir))


def _run_script(path: str, arguments: list[str]) -> None:
    """Runs like ``python path arguments...``: in a module __main__ that exists until the end."""
    sys.argv = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    main_module = types.ModuleType("__main__")
    main_module.__file__ = path
    main_module.__builtins__ = builtins
    sys.modules["__main__"] = main_module
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    exec(code, main_module.__dict__)


def _run_module(name: str, arguments: list[str]) -> None:
    """Runs like ``python -m name arguments...``."""
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.exit(main())
