"""Packs wheels from build/, checks their contents and installs them into environments."""

import email
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from programs import BUILD, run

ROOT = Path(__file__).parents[2]
VERSION = re.search(r"project\(telens VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
# A build and its training on a busy machine.
pytestmark = pytest.mark.timeout(1800)


def has_cuda(build: Path) -> bool:
    """Whether a build folder is configured with CUDA kernels, which the wheels do not contain."""
    cache = build / "CMakeCache.txt"
    return cache.exists() and "TELENS_CUDA:STRING=OFF" not in cache.read_text()


cpu_build = pytest.mark.skipif(
    has_cuda(BUILD), reason="build/ has CUDA kernels; `make build CUDA=OFF` packs telens"
)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """Returns the wheels by the name of their distribution."""
    out = tmp_path_factory.mktemp("wheels")
    packages = ["telens-cli"] if has_cuda(BUILD) else ["telens-cli", "telens", "telens-core"]
    run(sys.executable, ROOT / "packaging/build_wheels.py", BUILD, *packages, "--out", out)
    return {path.name.split("-")[0].replace("_", "-"): path for path in out.glob("*.whl")}


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def program(wheels, tmp_path_factory) -> Path:
    """Returns the program of telens-cli, unpacked."""
    folder = tmp_path_factory.mktemp("program")
    with zipfile.ZipFile(wheels["telens-cli"]) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("/scripts/telens"))
        path = Path(archive.extract(name, folder))
    path.chmod(0o755)
    return path


def bare_environment(folder: Path) -> Path:
    """Creates an environment without packages, not even pip. Returns its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    return folder / "bin/python"


def install(python: Path, *arguments: object) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-index")
    run(*pip, *arguments, env=os.environ | {"PYTHONPATH": ""})


@pytest.fixture(scope="module")
def bare(wheels, tmp_path_factory) -> Path:
    """Returns the Python of an environment that has only telens-cli."""
    python = bare_environment(tmp_path_factory.mktemp("bare"))
    install(python, wheels["telens-cli"])
    return python


@pytest.fixture(scope="module")
def environment(wheels, tmp_path_factory) -> Path:
    """Returns the Python of an environment with all wheels and the torch of this Python."""
    folder = tmp_path_factory.mktemp("environment")
    python = bare_environment(folder)
    packages = sysconfig.get_paths(vars={"base": str(folder)})["purelib"]
    Path(packages, "outer.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    # pip resolves the requirements: torch and the others are found through outer.pth.
    found = ("--find-links", wheels["telens"].parent)
    install(python, *found, "--ignore-installed", "--no-deps", "telens-cli", "telens")
    install(python, *found, "telens-core")
    return python


@pytest.fixture(scope="module")
def observing(wheels, environment, tmp_path_factory) -> Path:
    """Returns the Python of an environment like ``environment`` without telens-core."""
    folder = tmp_path_factory.mktemp("observing")
    python = bare_environment(folder)
    packages = sysconfig.get_paths(vars={"base": str(folder)})["purelib"]
    Path(packages, "outer.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    found = ("--find-links", wheels["telens"].parent)
    install(python, *found, "--ignore-installed", "--no-deps", "telens-cli")
    install(python, *found, "telens")
    return python


def in_environment(python: Path, *command: object, **options) -> str:
    """Runs a command without this process's Python path."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TELENS_PYTHON")}
    return run(*command, env=inherited | {"OMP_NUM_THREADS": "1"}, **options)


@pytest.fixture(scope="module")
def stored_run(tmp_path_factory) -> Path:
    """Returns a folder with the log_dir `stored`."""
    folder = tmp_path_factory.mktemp("stored")
    run(BUILD / "tests/write_run", folder / "stored", "run", "40", "0")
    return folder


# Commands that read a run on a machine without torch, with their exit codes.
READING = [
    (("info", "stored"), 0),
    (("stats", "stored"), 0),
    (("stats", "stored", "--format", "json"), 0),
    (("diagnose", "stored"), 1),
    (("plot", "stored"), 0),
]


def output(command: object, arguments: tuple[str, ...], folder: Path, *prefix: object) -> tuple:
    line = [*map(str, prefix), str(command), *arguments]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_unknown_package_is_rejected():
    program = ROOT / "packaging/build_wheels.py"
    done = subprocess.run(
        [sys.executable, program, BUILD, "telens-cil"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "unknown package 'telens-cil'; expected telens-cli, telens, telens-core" in done.stderr


# ---- telens-cli


def test_cli_wheel_supports_any_python_and_glibc_2_28(wheels):
    expected = f"telens_cli-{VERSION}-py3-none-manylinux_2_28_x86_64.musllinux_1_2_x86_64.whl"
    assert wheels["telens-cli"].name == expected


def test_cli_wheel_describes_itself(wheels):
    described = metadata(wheels["telens-cli"])
    assert (described["Name"], described["Version"]) == ("telens-cli", VERSION)
    for requirement in described.get_all("Requires-Dist"):
        assert requirement.endswith("; extra == 'mcp'")
    assert "telens diagnose logs" in described.get_payload()
    with zipfile.ZipFile(wheels["telens-cli"]) as archive:
        folder = f"telens_cli-{VERSION}.dist-info/licenses/"
        texts = {name: archive.read(folder + name) for name in described.get_all("License-File")}
    assert b"The HDF Group" in texts["third_party/hdf5.txt"]
    assert all(texts.values())


def test_cli_program_needs_no_shared_library(program):
    assert "NEEDED" not in run("readelf", "-dW", program)
    assert "INTERP" not in run("readelf", "-lW", program)


def test_cli_program_is_stripped_and_names_its_debug_file(program, wheels):
    sections = run("readelf", "-SW", program)
    assert ".symtab" not in sections
    assert ".debug_info" not in sections
    debug = wheels["telens-cli"].parent / "debug" / f"telens-cli-{VERSION}-x86_64.debug"
    assert debug.name.encode() + b"\0" in program.read_bytes()
    assert ".symtab" in run("readelf", "-SW", debug)


def test_auditwheel_accepts_the_cli_wheel_on_older_systems(wheels):
    shown = run(sys.executable, "-m", "auditwheel", "show", wheels["telens-cli"])
    assert "manylinux_2_5_x86_64" in " ".join(shown.split())


@pytest.mark.parametrize(("arguments", "code"), READING)
def test_bare_environment_reads_a_run(bare, stored_run, arguments, code):
    expected = output(BUILD / "bin/telens", arguments, stored_run)
    assert expected[0] == code
    assert output(bare.parent / "telens", arguments, stored_run) == expected


def test_bare_environment_writes_the_same_report(bare, stored_run, tmp_path):
    pages = [tmp_path / "one.html", tmp_path / "other.html"]
    for command, page in zip((BUILD / "bin/telens", bare.parent / "telens"), pages, strict=True):
        run(command, "report", "stored", "--out", page, cwd=stored_run)
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_bare_environment_does_not_contain_torch(bare, tmp_path):
    program = "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('telens'))"
    assert in_environment(bare, bare, "-c", program, cwd=tmp_path) == "None None\n"


def change_root() -> list[str]:
    return ["chroot"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "chroot"]


@pytest.mark.skipif(
    subprocess.run([*change_root(), "/", "/bin/true"], capture_output=True).returncode != 0,
    reason="changing the root folder is not permitted here",
)
def test_program_runs_in_an_empty_root(program, stored_run, tmp_path):
    shutil.copy2(program, tmp_path / "telens")
    shutil.copytree(stored_run / "stored", tmp_path / "stored")
    for arguments, code in READING:
        expected = output(BUILD / "bin/telens", arguments, stored_run)
        found = output("/telens", arguments, tmp_path, *change_root(), tmp_path)
        assert found == expected
        assert found[0] == code


def test_static_program_matches_golden_outputs(program):
    """Runs all golden tests of the command with the program of the wheel."""
    folder = ROOT / "tests/inspector_cli"
    run(
        *(sys.executable, folder / "golden.py"),
        env=os.environ | {"TELENS_COMMAND": str(program)},
        cwd=folder,
    )


# ---- telens


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@cpu_build
def test_telens_wheel_supports_torch_2_10_and_newer(wheels):
    required = metadata(wheels["telens"]).get_all("Requires-Dist")
    assert [each for each in required if each.startswith("torch")] == ["torch>=2.10"]
    assert f"telens-cli=={VERSION}" in required


@cpu_build
def test_core_wheel_requires_its_torch_and_its_telens(wheels):
    import torch

    required = metadata(wheels["telens-core"]).get_all("Requires-Dist")
    minor = ".".join(torch.__version__.split(".")[:2])
    assert sorted(required) == [f"telens=={VERSION}", f"torch=={minor}.*"]


@cpu_build
def test_wheels_contain_different_files(wheels):
    names = {package: set(names_in(wheel)) for package, wheel in wheels.items()}
    assert names["telens"] & names["telens-core"] == set()
    for package, found in names.items():
        assert not [name for name in found if "__pycache__" in name]
        commands = [name for name in found if name.endswith("bin/telens") or "/scripts/" in name]
        assert bool(commands) == (package == "telens-cli")


@cpu_build
def test_wheels_contain_their_binaries(wheels):
    def binaries(package: str) -> list[str]:
        return sorted(name for name in names_in(wheels[package]) if name.endswith(".so"))

    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert binaries("telens") == [f"telens/_observer{suffix}", "telens/lib/libtelens_observe.so"]
    assert binaries("telens-core") == [f"telens/_C{suffix}", "telens/lib/libtelens.so"]
    assert "telens/pytorch/__init__.py" in names_in(wheels["telens"])
    assert "telens/include/telens/hooks/plugin_abi.h" in names_in(wheels["telens"])
    assert "telens/include/telens/hooks/plugin.h" in names_in(wheels["telens-core"])


@cpu_build
def test_wheel_libraries_are_found_next_to_each_other(wheels, tmp_path):
    for package in ("telens", "telens-core"):
        with zipfile.ZipFile(wheels[package]) as archive:
            archive.extractall(tmp_path)
    libraries = [*tmp_path.rglob("*.so")]
    assert len(libraries) == 4
    for library in libraries:
        (path,) = re.findall(
            r"R(?:UN)?PATH\)\s+Library \w+: \[(.*)\]", run("readelf", "-d", library)
        )
        assert all(each.startswith("$ORIGIN") for each in path.split(":"))


@cpu_build
def test_environment_finds_a_planted_fault_and_records_a_program(environment, tmp_path):
    printed = in_environment(
        environment, environment, ROOT / "packaging/smoke.py", tmp_path, "--core"
    )
    facts = json.loads(printed.splitlines()[-1])
    assert facts["telens"] == VERSION


@cpu_build
def test_environment_without_core_records_the_same_statistics(observing, tmp_path):
    printed = in_environment(observing, observing, ROOT / "packaging/smoke.py", tmp_path)
    facts = json.loads(printed.splitlines()[-1])
    assert facts["telens"] == VERSION
    assert facts["statistics"] == 280


@cpu_build
def test_kernels_of_wheel_and_build_match(environment, tmp_path):
    program = "import smoke; print(smoke.kernel_digest())"
    digests = []
    for python, packages in (environment, ""), (sys.executable, f":{BUILD / 'python'}"):
        paths = f"{ROOT / 'packaging'}{packages}"
        variables = os.environ | {"PYTHONPATH": paths}
        digests.append(run(python, "-c", program, cwd=tmp_path, env=variables))
    assert digests[0] == digests[1]


@cpu_build
def test_separate_command_uses_the_python_of_the_program(bare, environment, tmp_path):
    """telens-cli is in a separate environment, as with pipx."""
    script = tmp_path / "train.py"
    script.write_text(f"#!{environment}\nimport smoke\nexec(smoke.PLAIN_PROGRAM)\n")
    script.chmod(0o755)
    variables = os.environ | {"PYTHONPATH": str(ROOT / "packaging"), "OMP_NUM_THREADS": "1"}
    for command in [str(script)], [environment, script]:
        logs = tmp_path / f"logs{len(command)}"
        run(bare.parent / "telens", "run", "--log-dir", logs, "--", *command, env=variables)
        assert "cur_amax" in run(bare.parent / "telens", "stats", logs, "--stat", "cur_amax")


@cpu_build
@pytest.mark.parametrize("packages", ["environment", "observing"])
def test_cpp_plugin_builds_against_the_wheels(request, tmp_path, packages):
    command = request.getfixturevalue(packages).parent / "telens"
    printed = run(command, "new-plugin", "CountLarge", "--cpp", "--dir", tmp_path)
    options = re.findall(r"-D\w+=\S+", printed)
    build = tmp_path / "build"
    run("cmake", "-S", tmp_path / "count_large", "-B", build, "-G", "Ninja", *options)
    run("cmake", "--build", build)
    assert "100% tests passed" in run("ctest", "--test-dir", build, "--output-on-failure")
