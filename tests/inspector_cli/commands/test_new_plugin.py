"""telens new-plugin: the files that it writes and the arguments that it refuses. tests/package
builds and runs the files.
"""

import resource
import signal
import subprocess

import pytest
from command_results import expect_one_line_error
from conftest import COMMAND, ROOT

TEMPLATES = ROOT / "samples/plugins"


def files_of(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("language", ["cpp", "python"])
def test_it_writes_the_template_under_the_new_name(telens, tmp_path, language):
    result = telens("new-plugin", "LogFP8Outliers", f"--{language}", "--dir", tmp_path / "new")
    project = tmp_path / "new/log_fp8_outliers"
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{project}\nnext: cd {project} && ")
    renamed = {
        name.replace("my_feature", "log_fp8_outliers"): text.replace(
            "MyFeature", "LogFP8Outliers"
        ).replace("my_feature", "log_fp8_outliers")
        for name, text in files_of(TEMPLATES / f"template_{language}").items()
    }
    assert files_of(project) == renamed
    assert len(renamed) >= 4


@pytest.mark.parametrize(
    ("name", "folder"),
    [("Outliers", "outliers"), ("X2Y", "x2_y"), ("A1", "a1"), ("LogABC", "log_abc")],
)
def test_the_folder_is_the_name_in_small_letters(telens, tmp_path, name, folder):
    assert telens("new-plugin", name, "--python", "--dir", tmp_path).returncode == 0
    assert (tmp_path / folder / "features" / f"{folder}.py").is_file()


@pytest.mark.parametrize(
    "name",
    ["log_outliers", "2Fast", "Log-Outliers", "Log Outliers", "../Evil", "Größe", "class", ""],
)
def test_a_name_that_is_none_is_refused(telens, tmp_path, name):
    result = telens("new-plugin", name, "--cpp", "--dir", tmp_path)
    expect_one_line_error(result, f"'{name}'", "such as LogOutliers")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        *("FakeQuant", "LogFp8Stats", "None", "NULL", "Class", "ConstCast", "Lambda", "Test"),
        *("Yes", "MetricLogger"),
    ],
)
def test_reserved_name_is_rejected(telens, tmp_path, name):
    result = telens("new-plugin", name, "--cpp", "--dir", tmp_path)
    expect_one_line_error(result, f"'{name}'", "choose another")


def test_existing_folder_is_unchanged(telens, tmp_path):
    (tmp_path / "outliers").mkdir()
    result = telens("new-plugin", "Outliers", "--python", "--dir", tmp_path)
    expect_one_line_error(result, str(tmp_path / "outliers"), "already exists")
    assert list((tmp_path / "outliers").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(telens, tmp_path):
    (tmp_path / "file").write_text("no folder")
    result = telens("new-plugin", "Outliers", "--cpp", "--dir", tmp_path / "file")
    expect_one_line_error(result, "cannot write", str(tmp_path / "file"))


def test_failed_write_leaves_no_project(tmp_path):
    def limit_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # fewer bytes than the longest has

    for folder in (tmp_path, tmp_path / "new"):
        result = subprocess.run(
            [COMMAND, "new-plugin", "Outliers", "--cpp", "--dir", folder],
            preexec_fn=limit_files,
            restore_signals=False,
            capture_output=True,
            text=True,
        )
        expect_one_line_error(result, "cannot write", "outliers")
        assert list(tmp_path.iterdir()) == []


def test_suggested_command_quotes_spaces(telens, tmp_path):
    folder = tmp_path / "it's mine"
    result = telens("new-plugin", "Outliers", "--python", "--dir", folder)
    next_step = result.stdout.split("next: ")[1].split(" && ")[0]
    inside = subprocess.run(["sh", "-c", f"{next_step} && pwd"], capture_output=True, text=True)
    assert inside.stdout == f"{folder / 'outliers'}\n"


def test_a_plugin_in_python_says_where_pytest_comes_from(telens, tmp_path):
    result = telens("new-plugin", "Outliers", "--python", "--dir", tmp_path)
    assert result.stdout.splitlines()[-2].endswith("python -m pytest")
    assert result.stdout.splitlines()[-1].endswith("python -m pip install pytest")
    in_cpp = telens("new-plugin", "Outliers", "--cpp", "--dir", tmp_path / "cpp").stdout
    assert "-m pytest" not in in_cpp


def test_the_language_must_be_said_once(telens, tmp_path):
    expect_one_line_error(telens("new-plugin", "X", "--dir", tmp_path), "--cpp or --python")
    expect_one_line_error(telens("new-plugin", "X", "--cpp", "--python"), "--cpp", "--python")


def test_help_has_examples(telens):
    assert "Examples:\n  telens new-plugin" in telens("new-plugin", "--help").stdout
