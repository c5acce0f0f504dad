"""`pip install --no-build-isolation .` into a fresh environment that sees this one's torch."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: object, **options) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    # The name by which CMake calls the compiler, and not scikit-build-core: ccache then knows what
    # the build has compiled.
    environment.setdefault("CXX", "c++")
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env=environment,
        **options,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


def test_pyproject_asks_for_nothing_that_its_backend_warns_of(tmp_path):
    """The backend's notes go to stderr, its metadata into a folder; nothing is compiled."""
    script = (
        "import sys, scikit_build_core.build as b; b.prepare_metadata_for_build_wheel(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    (metadata,) = tmp_path.glob("telens-*.dist-info/METADATA")
    assert "\nVersion: " in metadata.read_text()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The bin folder of an environment with telens installed."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    # Sees the packages of this environment behind its own, as --system-site-packages would.
    packages = sysconfig.get_paths(vars={"base": str(folder)})["purelib"]
    Path(packages, "outer.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    python = folder / "bin" / "python"
    run(
        *(python, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index"),
        # As build/ is compiled, so that ccache has it.
        "--config-settings=cmake.define.TELENS_WERROR=ON",
        *("--ignore-installed", ROOT),
    )
    return folder / "bin"


@pytest.mark.timeout(900)
def test_the_package_imports_from_where_it_was_installed(environment, tmp_path):
    where = run(environment / "python", "-c", "import telens; print(telens.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment.parent)


@pytest.mark.timeout(900)
def test_an_installed_layer_runs_forward_and_backward(environment, tmp_path):
    program = """
import torch, telens.pytorch as te
layer = te.Linear(32, 16)
layer(torch.ones(16, 32)).sum().backward()
print(tuple(layer.weight.grad.shape))
"""
    assert run(environment / "python", "-c", program, cwd=tmp_path) == "(16, 32)\n"


@pytest.mark.timeout(900)
def test_the_command_is_among_the_scripts(environment, tmp_path):
    assert "telens" in run(environment / "telens", "--help", cwd=tmp_path)


@pytest.mark.timeout(900)
def test_a_cpp_project_finds_the_installed_package(environment, tmp_path):
    prefix = run(
        environment / "python",
        *("-c", "import telens, pathlib; print(pathlib.Path(telens.__file__).parent)"),
        cwd=tmp_path,
    ).strip()
    config = Path(prefix, "lib", "cmake", "telens", "telensConfig.cmake")
    assert config.exists()
