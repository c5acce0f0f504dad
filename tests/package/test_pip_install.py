"""`pip install --no-build-isolation .` into a new environment that can use this one's torch."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: object, environment: dict[str, str] | None = None, **options) -> str:
    removed = ("PYTHONPATH", "PYTHONHOME")
    inherited = {key: value for key, value in os.environ.items() if key not in removed}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env=inherited | (environment or {}),
        **options,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


def test_pyproject_asks_for_nothing_that_its_backend_warns_of(tmp_path):
    """Writes the notes of the build backend to stderr and its metadata to a folder; compiles
    nothing.
    """
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


@pytest.fixture
def build_folders():
    """Two folders at the same depth in the tree as build/ and build-wheel/."""
    folders = [ROOT / f"build-ccache-test-{name}" for name in ("make", "pip")]
    yield folders
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.skipif(shutil.which("ccache") is None, reason="ccache is not installed")
@pytest.mark.skipif(shutil.which("x86_64-linux-gnu-g++") is None, reason="needs Debian's g++")
def test_pip_reuses_objects_that_make_compiled(build_folders, tmp_path):
    make, pip = build_folders
    cache = {"CCACHE_DIR": str(tmp_path)}
    small = ("-DTELENS_TORCH=OFF", "-DTELENS_PYTHON=OFF")
    run("cmake", "--preset", "release", "-B", make, *small, cwd=ROOT, environment=cache)
    project = (ROOT / "pyproject.toml").read_text()
    defined = re.findall(r'^(TELENS_\w+) = "(\w+)"$', project, re.MULTILINE)
    run(
        *("cmake", "-G", "Ninja", "-B", pip, "-DCMAKE_BUILD_TYPE=Release", *small),
        *(f"-D{name}={value}" for name, value in defined),
        cwd=ROOT,
        # The compiler under the name that Debian's Python passes to scikit-build-core.
        environment=cache | {"CXX": "x86_64-linux-gnu-g++"},
    )
    objects = [
        f"core/CMakeFiles/telens_base.dir/{name}"
        for name in ("cmake_pch.hxx.gch", "base/version.cpp.o")
    ]
    for folder in build_folders:
        run("ninja", "-C", folder, *objects, environment=cache)
    counted = run("ccache", "--print-stats", environment=cache)
    counts = dict(line.split("\t") for line in counted.splitlines())
    hits = int(counts["direct_cache_hit"]) + int(counts["preprocessed_cache_hit"])
    assert (hits, int(counts["cache_miss"])) == (len(objects), len(objects))


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The bin folder of an environment with telens installed."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    # Packages of this environment are found after its own, as with --system-site-packages.
    packages = sysconfig.get_paths(vars={"base": str(folder)})["purelib"]
    Path(packages, "outer.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    python = folder / "bin" / "python"
    run(
        *(python, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index"),
        *("--ignore-installed", ROOT),
    )
    return folder / "bin"


@pytest.mark.timeout(900)
def test_package_imports_from_its_installation(environment, tmp_path):
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
