"""A C++ user's project: cmake --install, find_package(telens), build, run."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
CONSUMER = Path(__file__).parent / "consumer"


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", prefix)
    return prefix


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


def test_another_minor_version_of_torch_is_refused_with_both_named(prefix, tmp_path):
    other = tmp_path / "torch"
    (other / "lib").mkdir(parents=True)
    (other / "version.py").write_text("__version__ = '2.0.1'\n")
    for name in ("torch_cpu", "c10"):
        (other / "lib" / f"lib{name}.so").touch()
    done = subprocess.run(
        [
            *("cmake", "-S", str(CONSUMER), "-B", str(tmp_path / "build"), "-G", "Ninja"),
            *(f"-DCMAKE_PREFIX_PATH={prefix}", f"-DLIBTORCH_ROOT={other}"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    message = " ".join(done.stderr.split())
    assert "telens was built with torch 2." in message
    assert "is torch 2.0.1" in message
