"""The steps of a check that build: carried packages, configure, compile."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from gpu_checks.context import ROOT, Context
from gpu_checks.prebuilt import digest_of_library
from gpu_checks.runner import Skipped

# Packages that tests compare with: a test skips itself without.
OPTIONAL_PACKAGES = (
    *("ml_dtypes", "gfloat", "h5py", "pandas", "hypothesis", "nvdlfw_inspect", "torchao"),
)
# Targets of the checks that need a GPU; tests that need none are built after them.
GPU_TARGETS = ("lib/libtelens.so", "telens_python", "gpt", "telens_command")


def unpack_wheels(context: Context) -> dict[str, list[str]]:
    """Which packages were carried, and which of those that tests compare with are not there."""
    wheels = sorted((context.dependencies / "wheels").glob("*.whl")) if context.dependencies else []
    if wheels and importlib.util.find_spec("pip") is None:
        raise Skipped("this Python has no pip to unpack the carried wheels with")
    if wheels:
        context.commands.run(
            *(sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"),
            *("--upgrade", "--no-compile", "--no-cache-dir", "--disable-pip-version-check"),
            *("--target", context.site),
            *wheels,
        )
    sys.path.insert(0, str(context.site))
    importlib.invalidate_caches()
    missing = [name for name in OPTIONAL_PACKAGES if importlib.util.find_spec(name) is None]
    return {"carried": [wheel.name for wheel in wheels], "missing": missing}


def pkg_config(context: Context) -> dict[str, str]:
    """For CMake's FindPkgConfig: where the carried libraries are, and the program if need be."""
    if not context.dependencies:
        return {}
    paths = [str(context.dependencies / "lib/pkgconfig"), os.environ.get("PKG_CONFIG_PATH")]
    found = {"PKG_CONFIG_PATH": os.pathsep.join(filter(None, paths))}
    carried = context.site / "pkgconf/.bin/pkgconf"
    if shutil.which("pkg-config") is None and carried.exists():
        carried.chmod(0o755)  # unpacking a wheel into a folder leaves out the mode
        found["PKG_CONFIG"] = str(carried)
    return found


def configure(context: Context) -> None:
    if context.prebuilt:
        configure_python_module(context)
        return
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DTELENS_CUDA=ON",
        f"-DTELENS_NVCC={context.nvcc}",
        *cuda_options(context),
        # A warning of an untried compiler should not cost the whole run.
        "-DTELENS_WERROR=OFF",
        "-DTELENS_BENCHMARKS=OFF",
        f"-DTELENS_TORCH_PYTHON={sys.executable}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    run_cmake(context, ROOT, options)


def cuda_options(context: Context) -> list[str]:
    if context.target:
        return [f"-DTELENS_CUDA_TARGETS={context.target}"]
    # One file's targets in parallel: the slowest one decides when the build is done.
    return ["-DCMAKE_CUDA_FLAGS=--threads=3"]


def configure_python_module(context: Context) -> None:
    """Of a library that was built elsewhere: it alone depends on the Python that imports it."""
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DTELENS_WERROR=OFF",
        f"-DTELENS_PREBUILT={context.prebuilt}",
        f"-DTELENS_TORCH_PYTHON={sys.executable}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    run_cmake(context, ROOT / "cmake/prebuilt", options)


def run_cmake(context: Context, source: Path, options: list[str]) -> None:
    if context.dependencies:
        options = [*options, f"-DCMAKE_PREFIX_PATH={context.dependencies}"]
    context.commands.run(
        *("cmake", "-S", source, "-B", context.build, "-G", "Ninja", *options),
        extra=pkg_config(context),
    )


def compile_for_gpu(context: Context) -> dict[str, str]:
    """Which library it is that the check is about."""
    build(context, *(("telens_python",) if context.prebuilt else GPU_TARGETS))
    return {"library": digest_of_library(context.library)}


def compile_everything(context: Context) -> None:
    build(context, "all")


def build(context: Context, *targets: str) -> None:
    context.commands.run(
        *("cmake", "--build", context.build, "--parallel", context.jobs, "--target", *targets)
    )
