"""Commands that depend on where `telens` is installed: new-plugin and replay."""

import os
import shutil
import subprocess

import pytest
from conftest import COMMAND

PYTHON = """\
#!/bin/sh
echo "$0" "$PYTHONPATH"
"""


def installed(path):
    """Copies the command to `path`. It looks for Python next to its own file."""
    path.parent.mkdir(parents=True)
    shutil.copy2(COMMAND, path)
    return path


def interpreter(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PYTHON)
    path.chmod(0o755)
    return path


def run(*arguments, **environment):
    ours = {name: value for name, value in os.environ.items() if name != "TELENS_PYTHON"}
    return subprocess.run(
        [*map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env=ours | {"PYTHONPATH": ""} | environment,
    )


def new_cpp_plugin(command, tmp_path):
    result = run(command, "new-plugin", "LogOutliers", "--cpp", "--dir", tmp_path / "plugins")
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_new_plugin_of_a_pip_install_names_its_folders(tmp_path):
    command = installed(tmp_path / "env/bin/telens")
    package = tmp_path / "env/lib/python3.11/site-packages/telens"
    package.mkdir(parents=True)
    printed = new_cpp_plugin(command, tmp_path)
    assert f"-DCMAKE_PREFIX_PATH={package}" in printed
    assert f"-DPython3_EXECUTABLE={command.parent / 'python3'}" in printed
    assert "make install" not in printed


def test_new_plugin_of_another_install_explains_the_prefix(tmp_path):
    printed = new_cpp_plugin(installed(tmp_path / "prefix/bin/telens"), tmp_path)
    assert "cmake -B build -G Ninja -DPython3_EXECUTABLE=$(command -v python3) &&" in printed
    assert "after `pip install` add -DCMAKE_PREFIX_PATH=$(python3 -c" in printed


@pytest.fixture
def tree(tmp_path):
    """A source tree with a build folder and a virtual environment."""
    installed(tmp_path / "build/bin/telens")
    (tmp_path / "build/CMakeCache.txt").touch()
    interpreter(tmp_path / ".venv/bin/python")
    return tmp_path


def test_replay_from_a_build_tree_uses_its_python_and_package(tree):
    (tree / "build/python/telens").mkdir(parents=True)
    (tree / "build/python/telens/_C.cpython-311-x86_64-linux-gnu.so").touch()
    command = tree / "build/bin/telens"
    python, package = tree / ".venv/bin/python", tree / "build/python"
    assert run(command, "replay", "dump").stdout == f"{python} {package}\n"
    assert run(command, "replay", "dump", PYTHONPATH="/own").stdout == f"{python} {package}:/own\n"


def test_replay_without_package_explains_build(tree):
    (tree / ".venv/bin/python").unlink()
    (tree / ".venv/bin/python").symlink_to(shutil.which("python3"))
    result = run(tree / "build/bin/telens", "replay", "dump", PYTHONNOUSERSITE="1")
    assert result.returncode == 2
    assert f"cmake --build {tree / 'build'} --target telens_python" in result.stderr


def test_replay_prefers_named_or_adjacent_python(tree):
    command = tree / "build/bin/telens"
    named, beside = interpreter(tree / "named"), interpreter(command.parent / "python3")
    assert run(command, "replay", "dump").stdout == f"{beside} \n"
    assert run(command, "replay", "dump", TELENS_PYTHON=str(named)).stdout == f"{named} \n"


@pytest.mark.parametrize(
    "first_lines",
    [
        "#!{}",
        "#!/bin/sh\n'''exec' {}",
        "#!/bin/sh\n'''exec' \"{}\"",
        "#!/usr/bin/env {}",
        "#!/usr/bin/env -S {} -u",
        "#!/usr/bin/env -S{} -u",
        "#!/usr/bin/env -S -u PYTHONHOME PYTHONUNBUFFERED=1 {}",
        "#!/usr/bin/env --split-string={} -u",
    ],
)
def test_run_starts_the_python_of_a_script(tmp_path, first_lines):
    python = interpreter(tmp_path / "env/bin/python3")
    command = installed(tmp_path / "other/bin/telens")
    interpreter(tmp_path / "other/bin/python3")
    script = tmp_path / "env/bin/torchrun"
    script.write_text(first_lines.format(python) + ' "$0" "$@"\n')
    script.chmod(0o755)
    assert run(command, "run", "--", script, "train.py").stdout == f"{python} \n"
    path = f"{script.parent}:{os.environ['PATH']}"
    assert run(command, "run", "--", "torchrun", "train.py", PATH=path).stdout == f"{python} \n"


def test_run_starts_the_adjacent_python_for_other_programs(tmp_path):
    command = installed(tmp_path / "env/bin/telens")
    python = interpreter(command.parent / "python3")
    assert run(command, "run", "--", "/bin/sh", "train.sh").stdout == f"{python} \n"


def test_run_reads_only_regular_files(tmp_path):
    """Opening a FIFO blocks, and a folder in PATH is not a program."""
    command = installed(tmp_path / "env/bin/telens")
    python = interpreter(command.parent / "python3")
    os.mkfifo(tmp_path / "fifo", 0o755)
    (tmp_path / "folder/tool").mkdir(parents=True)
    assert run(command, "run", "--", tmp_path / "fifo").stdout == f"{python} \n"
    of_script = interpreter(tmp_path / "scripts/python3")
    script = tmp_path / "scripts/tool"
    script.write_text(f"#!{of_script}\n")
    script.chmod(0o755)
    path = f"{tmp_path}/folder:{script.parent}:{os.environ['PATH']}"
    assert run(command, "run", "--", "tool", PATH=path).stdout == f"{of_script} \n"


def test_run_prefers_named_python_over_the_script(tmp_path):
    command = installed(tmp_path / "env/bin/telens")
    named, script = interpreter(tmp_path / "named"), tmp_path / "script"
    script.write_text("#!/usr/bin/env python3\n")
    result = run(command, "run", "--", script, TELENS_PYTHON=str(named))
    assert result.stdout == f"{named} \n"
