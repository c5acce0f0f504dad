#!/usr/bin/env python3
"""Packs wheels from a build folder and compiles missing targets. Requires Python >= 3.11.

    packaging/build_wheels.py build --libraries dist/portable [telens-cli] [telens] [telens-core]

telens-cli   the command `telens` as one static program; any Linux, any Python, no torch
telens       the Python package and the observer, for the Python of the build and torch 2.10 or newer
telens-core  the FP8 modules, for the Python and the torch minor version of the build

telens and telens-core install different files into the same package folder. Debug information is written to the folder `debug` next to the wheels.
"""

import argparse
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from elf import Binutils
from wheel_file import Metadata, Wheel

ROOT = Path(__file__).resolve().parents[1]
NATIVE = platform.machine()
# The oldest glibc that torch's wheels support. The static program does not need glibc and also runs
# on systems with musl.
CLI_PLATFORM = "manylinux_2_28_{0}.musllinux_1_2_{0}"
MAX_MEGABYTES = {"telens-cli": 6, "telens": 8, "telens-core": 8}
# The header of plugins that do not use LibTorch.
PLUGIN_HEADER = "hooks/plugin_abi.h"
# The oldest torch whose stable ABI the observer uses, as in python/telens/_load.py.
OLDEST_TORCH = "2.10"
# Libraries that torch's wheel or every Linux system with glibc contains.
PRESENT = re.compile(
    r"(libtelens(_observe)?|libtorch(_cpu|_python)?|libc10|libgomp(-\w+)?|libstdc\+\+|libgcc_s|libm|libc|ld-linux-.*)"
    r"\.so(\.\d+)*"
)


class PackagingError(RuntimeError):
    """Raised if a wheel would not work on other machines or the build folder is unsuitable."""


def version() -> str:
    text = (ROOT / "CMakeLists.txt").read_text()
    return re.search(r"project\(telens VERSION ([\d.]+)", text).group(1)


def licenses(libraries: Path, names: list[str]) -> dict[str, str]:
    """Returns the license texts of the libraries that a wheel contains."""
    texts = {}
    for name in names:
        file = libraries / "share/licenses" / f"{name}.txt"
        if not file.exists():
            raise PackagingError(
                f"no {file}: build the libraries again with cmake/portable/build.sh --libraries"
            )
        texts[f"third_party/{name}.txt"] = file.read_text(errors="replace")
    return texts


def metadata(pyproject: Path, readme: Path, dependencies: list[str], texts: dict[str, str]):
    project = tomllib.loads(pyproject.read_text())["project"]
    return Metadata(project, version(), readme.read_text(), dependencies, texts)


def build_targets(build: Path, libraries: Path, *targets: str) -> None:
    subprocess.run(
        ["cmake", f"-DTELENS_WHEEL_LIBRARIES={libraries}", str(build)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(["cmake", "--build", str(build), "--target", *targets], check=True)


def make_cli(build: Path, libraries: Path, out: Path, architecture: str) -> Path:
    build_targets(build, libraries, "telens_wheel_command")
    tools = Binutils(architecture, NATIVE)
    program = build / "wheel/telens"
    if tools.needed(program) or tools.interpreter(program):
        raise PackagingError(f"{program} is not static: it needs {tools.needed(program)}")
    contained = ["zlib", "fmtlib", "yaml-cpp", "pcre2", "cli11", "nlohmann-json3", "cpp-httplib"]
    contained += ["chart.js", "hdf5", "glibc", "gcc"]
    folder = ROOT / "packaging/cli"
    about = metadata(
        folder / "pyproject.toml", folder / "README.md", [], licenses(libraries, contained)
    )
    wheel = Wheel(about, f"py3-none-{CLI_PLATFORM.format(architecture)}")
    with tempfile.TemporaryDirectory() as scratch:
        stripped = Path(scratch, "telens")
        debug = out / "debug" / f"telens-cli-{about.version}-{architecture}.debug"
        tools.strip(program, stripped, debug)
        wheel.add_script(stripped)
        return wheel.write(out)


def glibc_tag(tools: Binutils, files: list[Path], architecture: str) -> str:
    """Returns the platform tag of the files.

    Raises PackagingError if a file needs a library that other machines may lack.
    """
    for file in files:
        missing = [name for name in tools.needed(file) if not PRESENT.fullmatch(name)]
        if missing:
            raise PackagingError(f"{file} needs libraries that other machines lack: {missing}")
    major, minor = max(tools.highest_version(file, "GLIBC") for file in files)[:2]
    return f"manylinux_{major}_{minor}_{architecture}"


def binaries(build: Path, libraries: Path, module: str, library: str) -> tuple[Path, Path]:
    """Builds an extension module and its library, linked with static libraries.

    Their targets are in cmake/TelensWheels.cmake. Returns (module, library).
    """
    build_targets(build, libraries, f"telens_wheel_{module}", f"telens_wheel_{library}")
    found = [*(build / "wheel").glob(f"{MODULES[module]}.*.so")]
    if len(found) != 1:
        names = [path.name for path in found]
        raise PackagingError(f"{build}/wheel has modules of several Pythons: {names}; remove them")
    return found[0], build / "wheel" / f"{LIBRARIES[library]}.so"


# Names of files by the ends of their targets' names.
MODULES = {"module": "_C", "observer": "_observer"}
LIBRARIES = {"library": "libtelens", "observe": "libtelens_observe"}


def python_tag(module: Path) -> str:
    """Returns the tag of the Python that the module fits, such as cp311-cp311."""
    python = "cp" + re.search(r"cpython-(\d+)", module.name).group(1)
    return f"{python}-{python}"


def add_binaries(
    wheel: Wheel, tools: Binutils, out: Path, architecture: str, files: tuple[Path, Path]
) -> None:
    """Adds a module and its library, stripped, and writes their debug information."""
    about = wheel.metadata
    with tempfile.TemporaryDirectory() as scratch:
        for file, path in zip(files, ("telens", "telens/lib"), strict=True):
            stripped = Path(scratch, file.name)
            name = f"{about.name}-{about.version}-{file.name.split('.')[0]}-{architecture}.debug"
            tools.strip(file, stripped, out / "debug" / name)
            wheel.add(f"{path}/{file.name}", stripped)


def list_headers(header: str) -> list[str]:
    """Returns the paths of a header of TELens and of all headers of TELens that it includes."""
    command = ["c++", "-std=c++20", "-MM", "-I", str(ROOT), "-x", "c++", str(ROOT / header)]
    rule = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    paths = (Path(each) for each in rule.split(":", 1)[1].replace("\\\n", " ").split())
    return sorted(path.relative_to(ROOT).as_posix() for path in paths if path.is_relative_to(ROOT))


def plugin_files(build: Path) -> dict[str, Path]:
    """Returns what builds a plugin that does not use LibTorch: path in the wheel -> file."""
    folder = build / "wheel/plugin"
    shutil.rmtree(folder, ignore_errors=True)
    install = ["cmake", "--install", str(build), "--prefix", str(folder), "--component", "plugin"]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    files = {f"telens/include/telens/{name}": ROOT / name for name in list_headers(PLUGIN_HEADER)}
    for file in sorted((folder / "lib/cmake/telens").iterdir()):
        files[f"telens/lib/cmake/telens/{file.name}"] = file
    return files


def make_telens(build: Path, libraries: Path, out: Path, architecture: str) -> Path:
    files = binaries(build, libraries, "observer", "observe")
    tools = Binutils(architecture, NATIVE)
    pyproject = ROOT / "pyproject.toml"
    project = tomllib.loads(pyproject.read_text())["project"]
    dependencies = [*project["dependencies"], f"telens-cli=={version()}"]
    if f"torch>={OLDEST_TORCH}" not in dependencies:
        raise PackagingError(f"{pyproject} must require torch>={OLDEST_TORCH}")
    contained = ["zlib", "fmtlib", "yaml-cpp", "pcre2", "nlohmann-json3", "highway", "hdf5"]
    about = metadata(pyproject, ROOT / "README.md", dependencies, licenses(libraries, contained))
    tag = glibc_tag(tools, [*files], architecture)
    wheel = Wheel(about, f"{python_tag(files[0])}-{tag}")
    wheel.add_folder("telens", ROOT / "python/telens", skip=["__pycache__", "_build.py.in"])
    wheel.files["telens/_build.py"] = (build / "python/telens/_build.py").read_bytes()
    for path, file in plugin_files(build).items():
        wheel.add(path, file)
    add_binaries(wheel, tools, out, architecture, files)
    return wheel.write(out)


def make_core(build: Path, libraries: Path, out: Path, architecture: str) -> Path:
    if "TELENS_CUDA:STRING=OFF" not in (build / "CMakeCache.txt").read_text():
        raise PackagingError(f"{build} has CUDA kernels; configure it with -DTELENS_CUDA=OFF")
    # lib/libtelens.so: the target name telens is ambiguous.
    build_targets(build, libraries, "lib/libtelens.so", "telens_python", "telens_command")
    files = binaries(build, libraries, "module", "library")
    tools = Binutils(architecture, NATIVE)
    facts = (build / "python/telens/_build.py").read_text()
    torch = re.search(r'TORCH_VERSION = "(.+)"', facts).group(1)
    minor = re.match(r"\d+\.\d+", torch).group()
    folder = ROOT / "packaging/core"
    dependencies = [f"telens=={version()}", f"torch=={minor}.*"]
    contained = ["zlib", "fmtlib", "yaml-cpp", "pcre2", "nlohmann-json3", "highway", "hdf5"]
    about = metadata(
        folder / "pyproject.toml",
        folder / "README.md",
        dependencies,
        licenses(libraries, contained),
    )
    tag = glibc_tag(tools, [*files], architecture)
    wheel = Wheel(about, f"{python_tag(files[0])}-{tag}")
    lines = ['"""What the core was built with."""', "", f'TORCH_VERSION = "{torch}"', ""]
    wheel.files["telens/_core_build.py"] = "\n".join(lines).encode()
    with tempfile.TemporaryDirectory() as scratch:
        prefix = Path(scratch, "prefix")
        subprocess.run(
            ["cmake", "--install", str(build), "--prefix", str(prefix)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        wheel.add_folder("telens/include", prefix / "include")
        wheel.add_folder("telens/lib/cmake", prefix / "lib/cmake")
    for path in plugin_files(build):
        del wheel.files[path]
    add_binaries(wheel, tools, out, architecture, files)
    return wheel.write(out)


MAKERS = {"telens-cli": make_cli, "telens": make_telens, "telens-core": make_core}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="a configured build folder")
    parser.add_argument(
        "packages", nargs="*", metavar="PACKAGE", help=f"{', '.join(MAKERS)}; default: all"
    )
    parser.add_argument("--libraries", type=Path, default=ROOT / "dist/portable")
    parser.add_argument("--out", type=Path, default=ROOT / "dist/wheels")
    parser.add_argument("--architecture", default=NATIVE)
    options = parser.parse_args()
    for package in options.packages:
        if package not in MAKERS:
            parser.error(f"unknown package {package!r}; expected {', '.join(MAKERS)}")
    too_large = False
    for package in options.packages or MAKERS:
        path = MAKERS[package](
            options.build.resolve(),
            options.libraries.resolve(),
            options.out.resolve(),
            options.architecture,
        )
        size = path.stat().st_size
        limit = MAX_MEGABYTES[package] * 1_000_000
        too_large |= size > limit
        print(f"{size / 1e6:6.2f} MB of {limit / 1e6:.0f}  {path.name}", flush=True)
    if too_large:
        print("a wheel is larger than its limit", file=sys.stderr)
    return int(too_large)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (PackagingError, subprocess.CalledProcessError) as error:
        print(f"build_wheels.py: {error}", file=sys.stderr)
        sys.exit(1)
