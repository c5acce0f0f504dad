"""Output that cannot be written is reported once, with exit code 2."""

import os
import signal
import stat
import subprocess

import pytest
from conftest import COMMAND
from example_config import CONFIG, LAYERS
from subcommands import SUBCOMMANDS, command_lines, fill

LINES = command_lines("output")


@pytest.fixture
def words_of(log_dir, one_rank, tmp_path):
    """Return a function that fills the placeholders of a command line."""
    config, layers = tmp_path / "debug.yaml", tmp_path / "names.txt"
    config.write_text(CONFIG.replace("fc1, qkv", "fc1"))
    layers.write_text(LAYERS)
    values = {"config": config, "layers": layers, "folder": tmp_path}
    return lambda line: [COMMAND, *fill(line, run=log_dir, histograms=one_rank, **values)]


def expect_one_message(result):
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("telens: cannot write to stdout: ")


@pytest.mark.parametrize("line", LINES)
def test_full_disk_is_an_error(words_of, line):
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            words_of(line), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    expect_one_message(result)


@pytest.mark.parametrize("name", [None, *SUBCOMMANDS])
def test_full_disk_is_an_error_of_help(name):
    for asked in [["--help"], ["--version"]] if name is None else [[name, "--help"]]:
        with open("/dev/full", "w") as full:
            result = subprocess.run(
                [COMMAND, *asked], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
            )
        expect_one_message(result)


@pytest.mark.parametrize("line", LINES)
def test_closed_stdout_is_an_error_and_keeps_the_run(words_of, run_file, line):
    before = run_file.read_bytes()
    result = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *words_of(line)],
        stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    expect_one_message(result)
    assert run_file.read_bytes() == before


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("line", LINES)
def test_broken_pipe_prints_no_message(words_of, line, ignored):
    reader, writer = os.pipe()
    os.close(reader)
    action = signal.SIG_IGN if ignored else signal.SIG_DFL
    result = subprocess.run(
        words_of(line), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60,
        restore_signals=False, preexec_fn=lambda: signal.signal(signal.SIGPIPE, action),
    )  # fmt: skip
    os.close(writer)
    assert result.stderr == ""
    assert result.returncode == (128 + signal.SIGPIPE if ignored else -signal.SIGPIPE)


def limited(size):
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # as a shell has it, and Python has not
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_failed_page_write_keeps_old_page(log_dir, tmp_path):
    out = tmp_path / "plot.html"
    out.write_text("the old one")
    result = subprocess.run(
        [COMMAND, "plot", log_dir, "--out", out], capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: limited(4096),
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr == f"telens: cannot write {out}: File too large\n"
    assert out.read_text() == "the old one"
    assert [each.name for each in tmp_path.iterdir()] == [out.name]


@pytest.mark.parametrize("command", ["plot", "report"])
def test_page_output_reports_replaced_file(telens, log_dir, tmp_path, command):
    out = tmp_path / "page.html"
    told = [telens(command, log_dir, "--out", out).stdout.split(": ")[0] for _ in range(2)]
    assert [each.rstrip() for each in told] == [
        f"wrote {out}",
        f"wrote {out} (replaced the old file)",
    ]


@pytest.mark.parametrize("command", ["plot", "report"])
def test_page_in_missing_folder_is_rejected(telens, log_dir, tmp_path, command):
    out = tmp_path / "new/page.html"
    result = telens(command, log_dir, "--out", out)
    assert result.returncode == 2
    assert result.stderr == (
        f"telens: cannot write {out}: folder {out.parent} does not exist; create it first\n"
    )
    assert not out.parent.exists()


@pytest.mark.parametrize("command", ["plot", "report"])
@pytest.mark.parametrize("out", ["page.html", "deep/page.html", "./page.html"])
def test_page_is_written_to_relative_path(log_dir, tmp_path, command, out):
    (tmp_path / "deep").mkdir()
    written = subprocess.run(
        [COMMAND, command, log_dir, "--out", out],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert written.returncode == 0, written.stderr
    assert (tmp_path / out).read_text().endswith("</html>\n")
    assert written.stdout.split("wrote ")[1].split(": ")[0].rstrip() == out


def test_page_replaces_old_page_atomically(telens, log_dir, tmp_path):
    page = tmp_path / "kept/plot.html"
    page.parent.mkdir()
    page.write_text("the old one")
    page.chmod(0o640)
    opened = page.open()
    assert telens("plot", log_dir, "--out", page).returncode == 0
    assert page.read_text().endswith("</html>\n")
    assert stat.S_IMODE(page.stat().st_mode) == 0o640
    assert opened.read() == "the old one"  # a reader has it whole
    assert [each.name for each in page.parent.iterdir()] == ["plot.html"]


@pytest.mark.parametrize("command", ["plot", "report"])
def test_page_replaces_link_not_target(telens, log_dir, tmp_path, command):
    target, link = tmp_path / "target", tmp_path / "page.html"
    target.write_text("another file of the user")
    link.symlink_to(target)
    assert telens(command, log_dir, "--out", link).returncode == 0
    assert not link.is_symlink()
    assert link.read_text().endswith("</html>\n")
    assert target.read_text() == "another file of the user"
