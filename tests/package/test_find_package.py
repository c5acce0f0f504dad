"""A C++ user's project: cmake --install, find_package(telens), build, run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import run

ROOT = Path(__file__).parents[2]
DEPENDENCIES = ROOT / "cmake/TelensDependencies.cmake"
CONSUMER = Path(__file__).parent / "consumer"


@pytest.fixture(scope="module")
def programs(prefix, tmp_path_factory):
    build = tmp_path_factory.mktemp("consumer")
    run(
        *("cmake", "-S", CONSUMER, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug"),
        *(f"-DCMAKE_PREFIX_PATH={prefix}", f"-DTELENS_TORCH_PYTHON={sys.executable}"),
    )
    run("cmake", "--build", build)
    return build


def test_a_program_uses_the_library_without_libtorch(programs):
    assert run(programs / "formats") == "wgrad 0x79 288\n"


def test_a_program_runs_a_layer_forward_and_backward(programs):
    assert run(programs / "linear") == "16 x 16\n"


def test_the_installed_command_runs(prefix):
    assert "telens" in run(prefix / "bin" / "telens", "--help")


def fake_torch(folder: Path, version: str) -> Path:
    """The parts of an installed torch that CMake looks at: its version, and that its libraries
    exist.
    """
    torch = folder / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "version.py").write_text(f"__version__ = '{version}'\n")
    for name in ("torch_cpu", "c10"):
        (torch / "lib" / f"lib{name}.so").touch()
    return torch


def refusal(*command: object) -> str:
    """Runs a command that must fail; returns its message."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode != 0
    return " ".join((done.stdout + done.stderr).split())


def test_another_minor_version_of_torch_is_refused_with_both_named(prefix, tmp_path):
    message = refusal(
        *("cmake", "-S", CONSUMER, "-B", tmp_path / "build", "-G", "Ninja"),
        *(f"-DCMAKE_PREFIX_PATH={prefix}", f"-DLIBTORCH_ROOT={fake_torch(tmp_path, '2.99.0')}"),
    )
    assert "telens was built with torch 2." in message
    assert "is torch 2.99.0" in message


LEAST_TORCH = re.findall(r"find_package\(LibTorch ([\d.]+) REQUIRED\)", DEPENDENCIES.read_text())
# A project without a compiler, because checking the compiler takes most of the configuration.
PROJECT = f"""
cmake_minimum_required(VERSION 3.24)
project(torch_alone LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH "{ROOT}/cmake")
find_package(LibTorch {"".join(LEAST_TORCH)} REQUIRED)
"""


@pytest.mark.parametrize("version", ["2.9.1", "1.13.1+cu117"])
def test_a_torch_that_is_too_old_is_refused_with_both_versions_named(tmp_path, version):
    torch = fake_torch(tmp_path, version)
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    message = refusal("cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DLIBTORCH_ROOT={torch}")
    assert f"{torch} is torch {version.partition('+')[0]}, expected torch >= 2.10" in message
    assert "TELENS_TORCH_PYTHON" in message


def test_the_least_torch_that_is_promised_is_taken(tmp_path):
    torch = fake_torch(tmp_path, "2.10.0")
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    run("cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DLIBTORCH_ROOT={torch}")
    assert f"{torch}/lib/libc10.so" in (tmp_path / "b" / "CMakeCache.txt").read_text()


def test_pip_refuses_a_torch_that_is_too_old_with_both_versions_named(tmp_path):
    torch = fake_torch(tmp_path, "2.9.1")
    message = refusal(
        *(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index"),
        *("-w", tmp_path / "wheel", f"--config-settings=cmake.define.LIBTORCH_ROOT={torch}"),
        *(f"--config-settings=build-dir={tmp_path / 'build'}", ROOT),
    )
    assert f"{torch} is torch 2.9.1, expected torch >= 2.10" in message


def test_cmake_and_wheel_require_the_same_least_torch():
    of_the_wheel = re.findall(r"torch>=([\d.]+)", (ROOT / "pyproject.toml").read_text())
    assert of_the_wheel == LEAST_TORCH * 2 == ["2.10", "2.10"]
