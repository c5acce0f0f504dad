"""Runs a copy of cmake/setup/setup.sh in a sandbox with fake commands in PATH."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Commands that every system has.
COMMON = (
    "bash",
    "cat",
    "cmp",
    "cp",
    "dirname",
    "env",
    "grep",
    "id",
    "mkdir",
    "sed",
    "tee",
    "touch",
)

# Files with the state, next to the commands: installed, lists (created by an update), calls.
FAKES = {
    "dpkg-query": """grep -qx "${@: -1}" "$STATE/installed" && echo 'ii '""",
    "apt-get": """echo "apt-get $*" >> "$STATE/calls"
case "$*" in
  update) touch "$STATE/lists" ;;
  *--simulate) [ -e "$STATE/lists" ] ;;
  install*) [ -e "$STATE/lists" ] || exit 100
    shift 3; printf '%s\\n' "$@" >> "$STATE/installed" ;;
esac""",
    "python": """if [ "$1 $2" = "-m venv" ]; then
  mkdir -p "$3/bin"
  cp "$STATE/bin/pip" "$3/bin/pip"
fi""",
    "pip": """echo "pip $*" >> "$STATE/calls"
[ ! -e "$STATE/offline" ] || exit 1
case "$*" in "install -q uv") cp "$STATE/bin/uv" "${0%/*}/uv" ;; esac""",
    "uv": """echo "uv $*" >> "$STATE/calls"
[ ! -e "$STATE/offline" ]""",
}
# pip installs uv, and uv installs the packages.
BY_UV = ["pip install", "uv pip"]


class Sandbox:
    def __init__(self, root: Path, fakes: tuple[str, ...]):
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir()
        shutil.copytree(ROOT / "cmake" / "setup", root / "cmake" / "setup")
        (root / "installed").touch()
        (root / "calls").touch()
        for name in COMMON:
            (self.bin / name).symlink_to(shutil.which(name))
        for name in fakes:
            self.add_command(name, FAKES[name])

    def add_command(self, name: str, body: str) -> None:
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(f"#!{shutil.which('bash')}\n{body}\n")
        (self.bin / name).chmod(0o755)

    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        """Runs the script with only the commands of the sandbox."""
        script = self.root / "cmake" / "setup" / "setup.sh"
        return self.run_command(shutil.which("bash"), str(script), *arguments)

    def run_command(self, *command: str) -> subprocess.CompletedProcess:
        environment = {
            "PATH": str(self.bin),
            "STATE": str(self.root),
            "TELENS_PYTHON": str(self.bin / "python"),
            "CXX": "false",
        }
        return subprocess.run(
            command,
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self) -> list[str]:
        """Returns the changing calls of apt, pip and uv since the previous query."""
        lines = (self.root / "calls").read_text().splitlines()
        (self.root / "calls").write_text("")
        asked = [line for line in lines if "--simulate" not in line and "pip config" not in line]
        return [" ".join(line.split()[:2]) for line in asked]

    def lists_given_to_uv(self) -> list[list[str]]:
        """Returns the requirements files of every uv call since the previous query."""
        lines = (self.root / "calls").read_text().splitlines()
        (self.root / "calls").write_text("")
        calls = [line.split() for line in lines if line.startswith("uv pip install")]
        return [[Path(word).name for word in words if word.endswith(".txt")] for words in calls]


@pytest.fixture
def debian(tmp_path):
    sandbox = Sandbox(tmp_path, ("dpkg-query", "apt-get", "python", "pip", "uv"))
    sandbox.add_command("id", "echo 0")
    return sandbox


def test_fresh_machine_fetches_lists_and_installs_once(debian):
    assert debian.run().returncode == 0
    assert debian.calls() == ["apt-get update", "apt-get install", *BY_UV]
    assert "ninja-build" in (debian.root / "installed").read_text().split()
    assert debian.run().returncode == 0
    assert debian.calls() == []


def test_build_setup_installs_no_test_packages(debian):
    assert debian.run("build").returncode == 0
    installed = (debian.root / "installed").read_text().split()
    assert "ninja-build" in installed
    assert "valgrind" not in installed
    assert debian.lists_given_to_uv() == [["python-packages.txt"]]
    assert debian.run("build").returncode == 0
    assert debian.calls() == []
    assert debian.run().returncode == 0
    assert "valgrind" in (debian.root / "installed").read_text().split()
    assert debian.lists_given_to_uv() == [["python-packages.txt", "python-test-packages.txt"]]
    assert debian.run("build").returncode == 0
    assert debian.calls() == []


def test_debian_packages_can_be_installed_separately(debian):
    assert debian.run("debian").returncode == 0
    assert debian.calls() == ["apt-get update", "apt-get install"]
    assert "valgrind" not in (debian.root / "installed").read_text().split()
    assert debian.run("build").returncode == 0
    assert debian.calls() == BY_UV


@pytest.mark.parametrize(
    ("part", "packages"),
    [("wheels", ["dpkg-dev"]), ("aarch64", ["g++-aarch64-linux-gnu", "qemu-user-static"])],
)
def test_wheel_packages_are_installed_separately(debian, part, packages):
    assert debian.run(part).returncode == 0
    assert debian.calls() == ["apt-get update", "apt-get install"]
    assert (debian.root / "installed").read_text().split() == packages


def test_build_after_test_setup_installs_both_lists(debian):
    debian.run()
    debian.calls()
    with (debian.root / "cmake" / "setup" / "python-packages.txt").open("a") as packages:
        packages.write("rich\n")
    debian.run("build")
    assert debian.lists_given_to_uv() == [["python-packages.txt", "python-test-packages.txt"]]


def test_unknown_part_is_rejected(debian):
    done = debian.run("biuld")
    assert done.returncode == 2
    assert "setup.sh biuld: expected nothing, build, debian, wheels or aarch64" in done.stderr
    assert debian.calls() == []


def test_current_package_lists_are_not_fetched_again(debian):
    (debian.root / "lists").touch()
    debian.run()
    assert debian.calls() == ["apt-get install", *BY_UV]


def test_only_missing_packages_are_installed(debian):
    debian.run()
    installed = debian.root / "installed"
    installed.write_text(installed.read_text().replace("ccache\n", ""))
    debian.calls()
    done = debian.run()
    assert "installing Debian packages: ccache\n" in done.stderr
    assert debian.calls() == ["apt-get install"]


def test_changed_python_package_list_is_installed(debian):
    debian.run()
    debian.calls()
    with (debian.root / "cmake" / "setup" / "python-packages.txt").open("a") as packages:
        packages.write("rich\n")
    debian.run()
    assert debian.calls() == BY_UV


def test_failed_download_is_an_error_and_is_retried(debian):
    (debian.root / "offline").touch()
    done = debian.run()
    assert done.returncode != 0
    assert "error: pip could not install" in done.stderr
    (debian.root / "offline").unlink()
    debian.calls()
    assert debian.run().returncode == 0
    assert debian.calls() == BY_UV


@pytest.mark.parametrize("uv", [None, "exit 1"])
def test_pip_installs_if_uv_is_missing_or_fails(debian, uv):
    (debian.root / "lists").touch()
    if uv is None:
        (debian.bin / "uv").unlink()
    else:
        debian.add_command("uv", f'echo "uv $*" >> "$STATE/calls"; {uv}')
    assert debian.run().returncode == 0
    tried = ["uv pip"] if uv else []
    assert debian.calls() == ["apt-get install", "pip install", *tried, "pip install"]
    assert debian.run().returncode == 0
    assert debian.calls() == []


def test_error_without_root_and_sudo_names_the_packages(debian):
    debian.add_command("id", "echo 1000")
    done = debian.run()
    assert done.returncode != 0
    assert "needs root or sudo" in done.stderr
    assert "ninja-build" in done.stderr


def test_user_with_sudo_installs_through_sudo(debian):
    debian.add_command("id", "echo 1000")
    debian.add_command("sudo", 'echo "sudo $*" >> "$STATE/calls"; "$@"')
    assert debian.run().returncode == 0
    assert "sudo env" in debian.calls()


def test_other_systems_get_a_list_of_missing_packages(tmp_path):
    sandbox = Sandbox(tmp_path, ("python", "pip"))
    for name in ("g++", "ninja", "pkg-config"):
        sandbox.add_command(name, "false" if name == "pkg-config" else "true")
    done = sandbox.run()
    assert done.returncode != 0
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    for name in ("cmake", "yaml-cpp", "HDF5", "CLI11", "nlohmann-json", "cpp-httplib"):
        assert name in error
    assert "ninja" not in error
    assert sandbox.calls() == []


def test_error_names_an_interpreter_that_is_not_python(debian):
    debian.add_command("python", "false")
    done = debian.run()
    assert done.returncode != 0
    assert f"{debian.bin / 'python'} is not; set TELENS_PYTHON" in done.stderr
    assert not os.path.exists(debian.root / ".venv")


WITH_TORCH = "cmake --preset release -DTELENS_TORCH=ON -DTELENS_PYTHON=ON"
# CMake in the sandbox: build.ninja contains libtelens.so only if torch is enabled.
CMAKE = """echo "cmake $*" >> "$STATE/calls"
case "$*" in
  *-DTELENS_TORCH=OFF*) mkdir -p build; echo telens_command >build/build.ninja ;;
  *-DTELENS_TORCH=ON*) mkdir -p build; echo libtelens.so >build/build.ninja ;;
esac"""


@pytest.fixture
def with_make(debian):
    shutil.copy(ROOT / "Makefile", debian.root)
    for name in ("make", "nice", "awk", "nproc", "rm", "sh", "sleep", "tail", "tr"):
        (debian.bin / name).symlink_to(shutil.which(name))
    debian.add_command("cmake", CMAKE)

    def configure(*arguments: str) -> list[str]:
        (debian.root / "calls").write_text("")
        done = debian.run_command("make", "configure", "JOBS=2", *arguments)
        assert done.returncode == 0, done.stderr
        debian.printed = done.stderr
        return (debian.root / "calls").read_text().splitlines()

    return debian, configure


def cmake_calls(calls: list[str]) -> list[str]:
    return [line for line in calls if line.startswith("cmake")]


def test_new_build_compiles_the_command_before_torch_arrives(with_make):
    debian, configure = with_make
    # uv succeeds only if the command is compiled before uv ends.
    body = (
        FAKES["uv"]
        + """
for _ in {1..200}; do grep -q "target telens_command" "$STATE/calls" && exit; sleep 0.05; done
exit 1"""
    )
    debian.add_command("uv", body)
    calls = configure()
    assert cmake_calls(calls) == [
        "cmake --preset release -DTELENS_TORCH=OFF -DTELENS_PYTHON=OFF",
        "cmake --build build --parallel 2 --target telens_command",
        WITH_TORCH,
    ]
    assert calls.index("apt-get update") < calls.index(cmake_calls(calls)[0])
    assert calls[-1].startswith("cmake --preset")
    assert cmake_calls(configure()) == []
    with_cuda = f"{WITH_TORCH} -DTELENS_CUDA=ON"
    assert cmake_calls(configure("CUDA=ON")) == [f"{with_cuda} -UTELENS_CUDA_TARGETS"]
    calls = cmake_calls(configure("CUDA=ON", "CUDA_TARGETS=80;90a"))
    assert calls == [f"{with_cuda} -DTELENS_CUDA_TARGETS=80;90a"]


def test_build_with_torch_is_configured_once(with_make):
    debian, configure = with_make
    debian.run("build")
    assert cmake_calls(configure()) == [WITH_TORCH]


def test_failed_early_compilation_is_a_warning(with_make):
    debian, configure = with_make
    debian.add_command("cmake", CMAKE + '\ncase "$*" in --build*) exit 1 ;; esac')
    assert cmake_calls(configure())[-1] == WITH_TORCH
    assert "warning: that failed (build/setup/command.log)" in debian.printed


def test_interrupted_build_without_torch_is_configured_with_torch(with_make):
    debian, configure = with_make
    (debian.root / "build" / "setup").mkdir(parents=True)
    (debian.root / "build" / "setup" / "without-torch").touch()
    (debian.root / "build" / "build.ninja").write_text("telens_command\n")
    assert cmake_calls(configure()) == [WITH_TORCH]


def test_build_without_torch_installs_no_torch(with_make):
    debian, configure = with_make
    (debian.root / "build").mkdir()
    (debian.root / "build" / "build.ninja").write_text("telens_command\n")
    assert cmake_calls(configure()) == []


# ---- progress.sh


def test_progress_is_printed_while_a_command_runs(tmp_path):
    done = tmp_path / "done"
    command = f"echo '[3/7] Building'; until [ -e {done} ]; do sleep 0.05; done; exit 4"
    process = subprocess.Popen(
        [ROOT / "cmake/setup/progress.sh", "compiling", "x/build.log", "sh", "-c", command],
        cwd=tmp_path,
        env=os.environ | {"TELENS_PROGRESS_SECONDS": "0.05"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr.readline() == "== compiling, 0 s; log: x/build.log\n"
    for line in process.stderr:
        if line.startswith("== compiling, 3 of 7, "):
            done.touch()
    assert done.exists()
    assert process.wait() == 4
    assert (tmp_path / "x/build.log").read_text() == "[3/7] Building\n"
