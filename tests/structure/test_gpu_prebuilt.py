"""Which library `make gpu-check` takes that was built elsewhere, and what building one leaves."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_gpu_machine import GOOD

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_check  # noqa: E402
from gpu_checks import prebuilt  # noqa: E402

SOURCES = (
    *(
        "core/kernels/cuda/quantize/amax.cu",
        "core/kernels/cuda/quantize/amax.cuh",
        "hooks/session/session.cpp",
    ),
    *("features/record/writer.h", "features/CMakeLists.txt", "inspector_cli/report/page.cpp.in"),
    *("samples/gpt/main.cpp", "CMakeLists.txt", "cmake/TelensCuda.cmake"),
    "cmake/prebuilt/build.sh",
)
OTHERS = (
    *("tests/core/amax_test.cpp", "tests/python/test_cuda.py", "python/bindings/module.cpp"),
    *("python/telens/debug.py", "benchmarks/gpu.py", "docs/gpu.md", "README.md", "core/notes.md"),
    *(
        "samples/gpt.py",
        "configs/all.yaml",
        "core/__pycache__/a.pyc",
        "cmake/prebuilt/CMakeLists.txt",
    ),
)
TORCH = """from typing import Optional
__all__ = ['__version__', 'debug', 'cuda']
__version__ = '2.11.0+cu130'
debug = False
cuda: Optional[str] = '13.0'
"""


def write(path: Path, text: str = "1") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def tree(tmp_path):
    for name in (*SOURCES, *OTHERS):
        write(tmp_path / "tree" / name)
    return tmp_path / "tree"


@pytest.fixture
def torch(tmp_path):
    return write(tmp_path / "torch/version.py", TORCH).parent


@pytest.fixture
def built(tree, torch, tmp_path):
    """A library that fits the tree, and GOOD."""
    folder = tmp_path / "prebuilt"
    write(folder / prebuilt.LIBRARY, "code")
    prebuilt.describe(folder, prebuilt.digest_of_compiled(tree), ["90a"], torch)
    return folder


def faults(folder: Path, tree: Path, **change) -> list[str]:
    return prebuilt.faults_of_prebuilt(folder, tree, replace(GOOD, **change))


def test_a_library_of_these_sources_for_this_torch_and_card_is_taken(built, tree):
    assert faults(built, tree) == []
    # Wheels of another index are the same torch.
    assert faults(built, tree, torch="2.11.0") == []


@pytest.mark.parametrize("name", SOURCES)
def test_whatever_is_compiled_into_it_makes_it_stale(built, tree, name):
    write(tree / name, "2")
    (fault,) = faults(built, tree)
    assert "built of other sources" in fault
    assert "make gpu-prebuilt" in fault
    assert prebuilt.faults_of_prebuilt(built, tree) == [fault], "without a machine too"


def test_what_is_not_compiled_into_it_does_not(built, tree):
    for name in OTHERS:
        write(tree / name, "2")
    assert faults(built, tree) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"torch": "2.12.0+cu130"}, "torch 2.11.0+cu130 (CUDA 13.0), and here is torch 2.12.0"),
        ({"torch_cuda": "12.9"}, "CUDA 12.9); expected the same"),
        ({"card": "NVIDIA B200", "capability": (10, 0)}, "B200 has compute capability 10.0"),
    ],
)
def test_another_torch_or_card_is_refused_by_name(built, tree, change, words):
    (fault,) = faults(built, tree, **change)
    assert words in fault
    assert "\n" not in fault


def test_a_library_without_a_description_or_with_that_of_another_is_refused(built, tree):
    write(built / prebuilt.LIBRARY, "other code")
    (fault,) = faults(built, tree)
    assert "is not the one that lib/libtelens.json describes" in fault
    for damage in ("{", "[]", '{"sources": "a"}', '{"sources": "a", "library": "b"}'):
        write(built / prebuilt.DESCRIPTION, damage)
        (fault,) = faults(built, tree)
        assert "does not say what it was built of" in fault
    (built / prebuilt.DESCRIPTION).unlink()
    (fault,) = faults(built, tree)
    assert "does not say what it was built of" in fault
    assert str(built) not in fault


@pytest.mark.parametrize(
    ("target", "capability", "runs"),
    [
        ("90a", (9, 0), True),
        ("90a", (10, 0), False),
        ("100f", (10, 3), True),
        ("100f", (9, 0), False),
        ("100f", (12, 0), False),
        ("90-virtual", (12, 1), True),
        ("90", (9, 0), True),
        ("90", (10, 0), False),
        ("103a", (10, 0), False),
        ("90a-virtual", (10, 0), False),
        ("hopper", (9, 0), False),
    ],
)
def test_a_target_runs_on_its_cards_alone(target, capability, runs):
    assert prebuilt.runs_on(target, capability) == runs


def test_a_folder_without_a_library_is_told_and_not_taken(tmp_path, capsys):
    arguments = ["--out", str(tmp_path / "out"), "--prebuilt", str(tmp_path / "prebuilt")]
    for _ in range(2):  # no folder, then an empty one
        assert gpu_check.prebuilt_of(gpu_check.parse_arguments(arguments)) is None
        assert "everything is compiled here" in capsys.readouterr().out
        (tmp_path / "prebuilt").mkdir(exist_ok=True)
    write(tmp_path / "prebuilt" / prebuilt.LIBRARY)
    taken = gpu_check.prebuilt_of(gpu_check.parse_arguments(arguments))
    assert taken == tmp_path / "prebuilt"
    assert gpu_check.prebuilt_of(gpu_check.parse_arguments(arguments[:2])) is None
    assert capsys.readouterr().out == ""


def test_a_rehearsal_refuses_a_library_of_other_sources(tmp_path, torch):
    folder = tmp_path / "prebuilt"
    write(folder / prebuilt.LIBRARY, "code")
    prebuilt.describe(folder, "another", ["90a"], torch)
    command = [sys.executable, str(ROOT / "benchmarks/gpu_check.py"), "--rehearse"]
    command += ["--out", str(tmp_path / "out"), "--prebuilt", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert "built of other sources (another, here " in result.stderr


# ---- build.sh

# Stands in for CMake: leaves what a build would, unless it is to fail.
CMAKE = """#!/bin/sh
build=$ROOT/build-prebuilt
mkdir -p $build/lib $build/bin
case $1 in
  -S) echo "LIBTORCH_ROOT:PATH=$TORCH" > $build/CMakeCache.txt ;;
  --build)
    [ -z "$FAIL" ] || exit 1
    [ -z "$CHANGE" ] || echo changed > $ROOT/$CHANGE
    echo "$CODE" > $build/lib/libtelens.so
    for name in bin/gpt bin/telens
    do echo program > $build/$name; done ;;
esac
"""
READELF = """#!/bin/sh
echo ' 0x0000000000000001 (NEEDED)  Shared library: [libtorch.so]'
echo " 0x0000000000000001 (NEEDED)  Shared library: [${NEEDED:-libc.so.6}]"
"""


@pytest.fixture
def build(tree, torch, tmp_path):
    """Runs build.sh of a tree with other programs in the place of CMake's and binutils'."""
    programs = tmp_path / "programs"
    for name, text in {"cmake": CMAKE, "strip": "#!/bin/sh\n", "readelf": READELF}.items():
        write(programs / name, text).chmod(0o755)
    (tmp_path / "portable/lib").mkdir(parents=True)
    shutil.copy(ROOT / "cmake/prebuilt/build.sh", tree / "cmake/prebuilt/build.sh")
    (tree / "benchmarks/gpu_checks").mkdir()
    for name in ("__init__.py", "prebuilt.py"):
        shutil.copy(ROOT / "benchmarks/gpu_checks" / name, tree / "benchmarks/gpu_checks" / name)

    def run(**variables) -> Path:
        environment = {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "ROOT": str(tree),
            "TORCH": str(torch),
            "CODE": "code",
        }
        script = tree / "cmake/prebuilt/build.sh"
        command = ["bash", script, tmp_path / "out/prebuilt", tmp_path / "portable", "1"]
        subprocess.run(command, env=environment | variables, check=True, capture_output=True)
        return tmp_path / "out/prebuilt"

    return run


def test_a_build_leaves_a_library_that_fits_its_sources(build, tree):
    folder = build()
    assert faults(folder, tree) == []
    assert json.loads((folder / prebuilt.DESCRIPTION).read_text())["targets"] == ["90a"]
    assert {path.name for path in folder.iterdir()} == {"lib", "bin"}


def test_what_changes_while_it_is_built_makes_it_stale(build, tree):
    (fault,) = faults(build(CHANGE="core/kernels/cuda/quantize/amax.cu"), tree)
    assert "built of other sources" in fault


@pytest.mark.parametrize("failure", [{"FAIL": "1"}, {"NEEDED": "libyaml-cpp.so.0.7"}])
def test_a_build_that_fails_leaves_what_was_there(build, tmp_path, failure):
    with pytest.raises(subprocess.CalledProcessError):
        build(**failure)
    assert not (tmp_path / "out/prebuilt").exists()
    folder = build()
    with pytest.raises(subprocess.CalledProcessError):
        build(**failure, CODE="half")
    assert (folder / prebuilt.LIBRARY).read_text() == "code\n"
    assert (build(CODE="new") / prebuilt.LIBRARY).read_text() == "new\n"
