"""Files that the system does not let the command read: the message names the cause, not damage."""

import contextlib
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile

import pytest
from command_results import expect_one_line_error
from conftest import COMMAND
from test_damage import flip

NOBODY = 65534  # the id of the user without rights


@pytest.fixture
def without_rights():
    """Runs the command as a user without access rights; root can read everything."""

    def give_up_root():
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)

    def run(*arguments):
        return subprocess.run(
            [COMMAND, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
            preexec_fn=give_up_root,
        )

    try:
        reaches_it = run("--version").returncode == 0
    except OSError:
        reaches_it = False
    if not reaches_it:
        pytest.skip("a user without rights cannot start the command where it was built")
    return run


@pytest.fixture
def two_runs(log_dir):
    """A log_dir that another user may read; pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "logs"
        shutil.copytree(log_dir, copy)
        shutil.copytree(log_dir / "telens/run", copy / "telens/later")
        for path in [pathlib.Path(folder), *copy.rglob("*"), copy]:
            path.chmod(0o755)
        os.utime(copy / "telens/later")
        yield copy
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o755)


@contextlib.contextmanager
def closed(path):
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(0o755)


@pytest.mark.parametrize("part", ["", "telens", "telens/run", "telens/run/rank00000.h5"])
@pytest.mark.parametrize("command", ["info", "stats", "repair"])
def test_unreadable_path_is_not_a_missing_run(without_rights, two_runs, command, part):
    shutil.rmtree(two_runs / "telens/later")
    with closed(two_runs / part):
        result = without_rights(command, two_runs)
    expect_one_line_error(result, str(two_runs / part), "Permission denied")
    assert "run not found" not in result.stderr
    assert "no run file" not in result.stderr


def test_unreadable_newest_run_lists_others(without_rights, two_runs):
    with closed(two_runs / "telens/later"):
        info = without_rights("info", two_runs)
        stats = without_rights("stats", two_runs)
    for result in (info, stats):
        assert result.returncode == 2
        assert ": later. To choose another" in result.stderr
        assert f"{two_runs}/telens/later: cannot be read: Permission denied" in result.stderr
    assert info.stdout.startswith("other runs ")
    assert f"{two_runs}/telens/run  started " in info.stdout
    assert stats.stdout == ""


def test_repair_without_permission_names_file_and_cause(without_rights, two_runs):
    path = two_runs / "telens/run/rank00000.h5"
    flip(path, "scalars", 24 * 7)
    path.chmod(0o666)
    result = without_rights("repair", path)
    expect_one_line_error(
        result, f"telens: {path}: cannot be repaired", "Permission denied", "folder"
    )
    assert "errno" not in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        lambda run, folder: ["plot", run, "--out", folder / "page.html"],
        lambda run, folder: ["new-plugin", "LogOutliers", "--python", "--dir", folder / "new"],
    ],
    ids=["plot", "new-plugin"],
)
def test_output_without_rights_is_refused_with_the_cause(without_rights, two_runs, command):
    result = without_rights(*command(two_runs / "telens/run", two_runs))
    expect_one_line_error(result, f"telens: cannot write {two_runs}/", "Permission denied")
    assert not (two_runs / "new").exists()


def test_a_path_that_is_absent_is_still_an_absent_run(telens, tmp_path):
    expect_one_line_error(telens("info", tmp_path / "none"), "run not found")
    expect_one_line_error(telens("info", tmp_path), "no run file (rank*.h5) in it")


def test_too_many_links_are_named(telens, tmp_path):
    (tmp_path / "round").symlink_to("round")
    expect_one_line_error(telens("info", tmp_path / "round"), "Too many levels of symbolic links")


@pytest.mark.skipif(
    "TELENS_SANITIZED" in os.environ, reason="sanitizers need open files themselves"
)
@pytest.mark.parametrize("command", ["info", "stats", "repair"])
def test_too_many_open_files_are_not_damage(run_file, command):
    """If the limit is one less than needed, at any point, the message names the limit."""
    causes = set()
    for most in range(3, 12):
        result = subprocess.run(
            [COMMAND, command, str(run_file)],
            capture_output=True,
            text=True,
            timeout=60,
            preexec_fn=lambda most=most: resource.setrlimit(
                resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            ),
        )
        assert "damaged" not in result.stderr, most
        if result.returncode == 2:
            expect_one_line_error(result, f"{run_file}: ", "Too many open files")
            causes.add(most)
    assert causes, "no limit was too small"


@pytest.mark.parametrize("which", ["config", "layers"])
def test_unreadable_config_names_the_cause(without_rights, two_runs, which):
    config, layers = two_runs / "debug.yaml", two_runs / "layers.txt"
    config.write_text("")
    layers.write_text("fc1\n")
    path = {"config": config, "layers": layers}[which]
    with closed(path):
        result = without_rights("plan", config, "--layers", layers)
    expect_one_line_error(result, str(path), "cannot be read: Permission denied")


def test_missing_config_names_the_cause(telens, tmp_path):
    layers = tmp_path / "layers.txt"
    layers.write_text("fc1\n")
    for path, cause in [(tmp_path, "Is a directory"), (tmp_path / "no", "No such file")]:
        result = telens("plan", path, "--layers", layers)
        expect_one_line_error(result, f"the config file '{path}' cannot be read: {cause}")
