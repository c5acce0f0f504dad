"""The telens command as a program: output and exit codes."""

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess

import h5py
import pytest
from command_results import expect_one_line_error, rows_of
from conftest import COMMAND, WRITE_RUN
from rewritten_run import rewritten, without_checksums


@pytest.mark.parametrize("where", ["", "telens", "telens/run", "telens/run/rank00000.h5"])
def test_a_run_may_be_named_by_any_of_its_places(telens, log_dir, where):
    result = telens("info", log_dir / where)
    assert result.returncode == 0
    assert "1441 records, iterations 0 to 40" in result.stdout


def test_info_reports_first_problem(telens, log_dir):
    output = telens("info", log_dir).stdout
    assert "first non-finite: iteration 30, layers.2.fc1 activation: 3 elements" in output
    assert "loss not finite: from iteration 33" in output
    first = "iteration 25, layers.2.fc1 activation fprop: 25 elements"
    assert f"occasional clipping (harmless): first at {first}" in output
    assert "ended cleanly" in output
    assert "layers.2.fc1: activation is not finite" in output


def test_info_names_the_statistics(telens, lines, tmp_path):
    for name in ("mean", "tail%"):
        lines.record(0, "fc1", "weight", name, 1)
    watched = "1 layer, 1 tensor, 2 statistics: mean, tail%\n"
    assert watched in telens("info", lines.write(tmp_path / "two")).stdout
    for number in range(20):
        lines.record(0, "fc1", "weight", f"own_{number}", 1)
    output = telens("info", lines.write(tmp_path / "many")).stdout
    assert "22 statistics: mean, tail%, own_0, " in output
    assert ", own_9 and 10 more\n" in output


def test_stats_without_fp8_shows_recorded_statistics(telens, lines, tmp_path):
    for step in range(3):
        lines.record(step, "fc1", "weight", "tail%", step)
    run = lines.write(tmp_path)
    assert telens("stats", run).stdout == telens("stats", run, "--stat", "tail%").stdout
    heading, row = telens("stats", run).stdout.splitlines()
    assert heading.split()[:4] == ["layer", "tensor", "gemm", "statistic"]
    assert row.split()[:6] == ["fc1", "weight", "tail%", "0", "1", "2"]


def test_a_tensor_that_several_ranks_have_counts_once(telens, write_run):
    log_dir = write_run()
    write_run(log_dir=log_dir, rank=1)
    result = telens("info", log_dir)
    assert "iteration 30, layers.2.fc1 activation: 3 elements\n" in result.stdout


@pytest.mark.parametrize("command", ["info", "stats", "plot"])
def test_a_damaged_rank_is_named_and_the_others_are_read(telens, write_run, command):
    log_dir = write_run()
    write_run(log_dir=log_dir, rank=1)
    damaged = log_dir / "telens/run/rank00001.h5"
    damaged.write_bytes(damaged.read_bytes()[:5000])
    result = telens(command, log_dir)
    said = result.stdout if command == "info" else result.stderr
    assert result.returncode == 0
    assert said.count(f"{damaged}: truncated or damaged (") == 1
    assert "layers.2.fc1" in result.stdout


def test_info_prints_config_and_environment(telens, log_dir):
    assert telens("info", log_dir, "--config").stdout == "everything:\n  enabled: True\n"
    assert telens("info", log_dir, "--environment").stdout == "torch=2.11.0\n"


def test_stats_lists_the_worst_tensor_first(telens, log_dir):
    rows = rows_of(telens("stats", log_dir, "--format", "csv"))
    assert [(row["layer"], row["tensor"]) for row in rows] == [
        ("layers.2.fc1", "activation"),  # 10 iterations of 3 non-finite elements
        ("layers.3.fc1", "activation"),  # 8 of them
        ("layers.3.fc1", "gradient"),  # then by underflows%: 13
        ("layers.2.fc1", "gradient"),
        ("layers.1.fc1", "gradient"),
        ("layers.0.fc1", "gradient"),
        ("layers.1.fc1", "activation"),  # 0.5 %
        ("layers.0.fc1", "activation"),
    ]
    worst = rows[0]
    assert worst["gemm"] == "fprop"
    assert (worst["nonfinite"], worst["first"]) == ("30", "30")
    assert float(worst["overflows%"]) == 0.25
    assert float(worst["underflows%"]) == 1.0
    assert float(worst["mse/amax^2"]) == pytest.approx(1e-4)
    assert float(worst["amax"]) == 3.0
    assert worst["iterations"] == "40"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["--layer", r"\.[01]\."], {("layers.0.fc1", "gradient"), ("layers.1.fc1", "gradient"),
                                   ("layers.0.fc1", "activation"), ("layers.1.fc1", "activation")}),
        (["--layer", "^layers.3", "--tensor", "gradient"], {("layers.3.fc1", "gradient")}),
        (["--layer", "0", "--gemm", "dgrad"], {("layers.0.fc1", "gradient")}),
        (["--layer", "0", "--gemm", "fprop"], {("layers.0.fc1", "activation")}),
    ],
)  # fmt: skip
def test_stats_filters(telens, log_dir, filters, expected):
    rows = rows_of(telens("stats", log_dir, "--format", "csv", *filters))
    assert {(row["layer"], row["tensor"]) for row in rows} == expected


def test_stats_ranks_finite_tensors_by_cast_loss(telens, log_dir):
    # Before iteration 30 all values are finite. Gradients lose 10 % or more to underflow. One
    # activation loses 1 % and clips 0.25 %, which counts 16 times, so 5 %.
    rows = rows_of(telens("stats", log_dir, "--format", "csv", "--iterations", "25:29"))
    assert {row["nonfinite"] for row in rows} == {"0"}
    keys = [(row["layer"], row["tensor"], row["overflows%"]) for row in rows[3:6]]
    assert keys == [("layers.0.fc1", "gradient", ""), ("layers.2.fc1", "activation", "0.25"),
                    ("layers.3.fc1", "activation", "0")]  # fmt: skip


def test_stats_breaks_ties_by_relative_error(telens, run_file, tmp_path):
    errors = {"layers.0.fc1": 2, "layers.1.fc1": 4, "layers.2.fc1": 1, "layers.3.fc1": 3}

    def change(_, layer, tensor, statistic):
        if statistic == "mse":
            # The amax is larger where the relative error is smaller, so mse gives another order.
            return errors[layer] * 1e-6 * (5 - errors[layer]) ** 2
        if statistic == "cur_amax":
            return 5 - errors[layer] if tensor == "activation" else 1.0
        return 0.0

    run = rewritten(run_file, tmp_path, change)
    rows = rows_of(telens("stats", run, "--format", "csv"))
    worst = [row["layer"] for row in rows if row["tensor"] == "activation"]
    assert worst == ["layers.1.fc1", "layers.3.fc1", "layers.0.fc1", "layers.2.fc1"]
    assert [float(row["mse/amax^2"]) for row in rows[:4]] == pytest.approx([4e-6, 3e-6, 2e-6, 1e-6])


@pytest.mark.parametrize(
    ("statistic", "worst"),
    [("gemm_cosine", -10.0), ("scale_headroom", -10.0), ("scale_jump", -10.0), ("scale_age", 0.3)],
)
def test_stats_for_one_statistic_shows_worst_series_first(
    telens, run_file, tmp_path, statistic, worst
):
    values = {"layers.0.fc1": 0.1, "layers.1.fc1": -10.0, "layers.2.fc1": 0.2, "layers.3.fc1": 0.3}
    run = rewritten(run_file, tmp_path, lambda _, layer, *others: values[layer])
    with h5py.File(run, "r+", libver="latest") as file:
        names = file["names/statistic"][:]
        names[names == b"cur_amax"] = statistic.encode()
        file["names/statistic"][:] = names
    rows = rows_of(telens("stats", run, "--stat", statistic, "--format", "csv"))
    assert float(rows[0]["last"]) == worst


def test_many_events_of_a_kind_hide_no_other(telens, run_file, tmp_path):
    run = tmp_path / "rank00000.h5"
    shutil.copy(run_file, run)
    with h5py.File(run, "r+", libver="latest") as file:
        events = file["events"]
        (warning,) = events[:]
        words = [word.decode() for word in file["names/word"][:]]
        events.resize((11,))
        for i in range(10):
            warning["iteration"] = i
            events[i] = warning
        warning["kind"] = words.index("loss")
        events[10] = warning
        without_checksums(file)
    output = telens("info", run).stdout
    assert re.search(r"^loss +iteration 9: layers.2.fc1", output, re.MULTILINE)
    shown = re.findall(r"^warning +iteration (\d+)", output, re.MULTILINE)
    assert shown == ["0", "1", "9"]
    assert "... 7 more of this kind (--events shows all)" in output
    output = telens("info", run, "--events").stdout
    shown = re.findall(r"^warning +iteration (\d+)", output, re.MULTILINE)
    assert shown == [str(i) for i in range(10)]


@pytest.fixture(scope="module")
def two_ranks(write_run):
    """Two ranks, of which rank 1 ended before anything went wrong."""
    log_dir = write_run()
    return write_run(log_dir=log_dir, rank=1, iterations=20)


def test_stats_shows_only_the_chosen_rank(telens, two_ranks):
    def of(*arguments):
        rows = rows_of(telens("stats", two_ranks, "--format", "csv", *arguments))
        assert len(rows) == 8
        return {(row["iterations"], row["nonfinite"]) for row in rows}

    # One tensor also has a histogram, in another iteration.
    assert of("--rank", 0) == {("40", "30"), ("40", "24"), ("40", "0"), ("41", "0")}
    assert of("--rank", 1) == {("20", "0"), ("21", "0")}
    assert of() == of("--rank", 0)


def test_plot_shows_only_the_chosen_rank(telens, two_ranks):
    def of(rank):
        result = telens("plot", two_ranks, "--stat", "cur_amax", "--rank", rank)
        assert result.returncode == 0, result.stderr
        # Below the plot there is a legend.
        text, legend, _ = result.stdout.partition(". = 0 ")
        assert legend
        return text

    for rank, diverged in ((0, True), (1, False)):
        assert ("first non-finite: iteration 30" in of(rank)) == diverged
        assert ("loss not finite: from iteration 33" in of(rank)) == diverged
        assert ("!!!!" in of(rank)) == diverged
        assert "layers.2.fc1" in of(rank)


def test_stats_keeps_to_the_iterations_asked_for(telens, log_dir):
    rows = rows_of(telens("stats", log_dir, "--format", "csv", "--iterations", "28:31"))
    assert {row["layer"]: row["nonfinite"] for row in rows if row["tensor"] == "activation"} == {
        "layers.2.fc1": "6", "layers.3.fc1": "0", "layers.1.fc1": "0", "layers.0.fc1": "0"
    }  # fmt: skip
    assert {row["iterations"] for row in rows} == {"4"}


def test_stats_of_chosen_statistics_are_their_courses(telens, log_dir):
    rows = rows_of(telens("stats", log_dir, "--stat", "cur_amax", "--format", "csv"))
    first = rows[0]
    assert (first["layer"], first["tensor"], first["not finite"]) == (
        "layers.2.fc1", "activation", "10"
    )  # fmt: skip
    assert (float(first["min"]), float(first["max"]), first["last"]) == (3.0, 3.0, "NaN")
    assert (first["records"], first["at"]) == ("40", "39")


def test_json_has_the_content_of_csv(telens, log_dir):
    rows = json.loads(telens("stats", log_dir, "--format", "json").stdout)
    assert len(rows) == 8
    assert rows[0]["layer"] == "layers.2.fc1"
    assert rows[0]["nonfinite"] == 30
    assert rows[-1]["first"] is None
    courses = json.loads(telens("stats", log_dir, "--stat", "cur_amax", "--format", "json").stdout)
    assert courses[0]["last"] == "NaN"


def test_top_limits_the_rows(telens, log_dir):
    assert len(rows_of(telens("stats", log_dir, "--format", "csv", "--top", 3))) == 3


@pytest.mark.parametrize("arguments", [["info"], ["stats"], ["plot"]])
def test_a_pipe_gets_no_colours(telens, log_dir, arguments):
    result = telens(*arguments, log_dir)
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    assert result.stderr == ""


def test_a_terminal_gets_colours(log_dir):
    leader, follower = pty.openpty()
    subprocess.run([COMMAND, "info", str(log_dir)], stdout=follower, check=True,
                   env={**os.environ, "TERM": "xterm", "NO_COLOR": ""})  # fmt: skip
    os.close(follower)
    output = b""
    with contextlib.suppress(OSError):  # the end, as a terminal without a writer has it
        while chunk := os.read(leader, 65536):
            output += chunk
    os.close(leader)
    assert b"\x1b[31;1mfirst non-finite" in output


def test_plot_marks_nonfinite_values(telens, log_dir):
    output = telens("plot", log_dir, "--stat", "cur_amax").stdout
    row = next(line for line in output.splitlines() if line.startswith("layers.2.fc1 "))
    assert row.rstrip().endswith("#" + "!" * 10)
    assert "loss" in output


def test_plot_writes_a_page_that_needs_no_network(telens, log_dir, tmp_path):
    out = tmp_path / "of plots/run.html"
    out.parent.mkdir()
    result = telens("plot", log_dir, "--out", out)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"wrote {out}\n", "")
    text = out.read_text()
    for expected in ["layers.2.fc1", "first non-finite: iteration 30", "overflows%", "loss"]:
        assert expected in text
    for loading in ["src=", "<link", "@import", "href="]:
        assert loading not in text.split("<script>")[0]
    assert "Chart.js v3.9" in text
    assert "default-src 'none'" in text


@pytest.mark.parametrize("command", ["info", "stats", "plot", "repair"])
class TestBadInput:
    def test_a_missing_run(self, telens, tmp_path, command):
        expect_one_line_error(telens(command, tmp_path / "none"), "none", "run not found")

    def test_a_folder_without_a_run(self, telens, tmp_path, command):
        expect_one_line_error(telens(command, tmp_path), "no run file")

    def test_a_foreign_file(self, telens, tmp_path, command):
        path = tmp_path / "rank00000.h5"
        path.write_text("not HDF5 at all")
        expect_one_line_error(telens(command, path), str(path), "not an HDF5 file")

    def test_an_hdf5_file_of_someone_else(self, telens, tmp_path, command):
        path = tmp_path / "other.h5"
        h5py.File(path, "w", libver="latest").close()
        expect_one_line_error(telens(command, path), "not a run file of TELens")

    def test_a_newer_schema(self, telens, run_file, tmp_path, command):
        path = tmp_path / "rank00000.h5"
        shutil.copy(run_file, path)
        with h5py.File(path, "r+", libver="latest") as file:
            file.attrs["schema_version"] = 99
        expect_one_line_error(telens(command, path), "schema version 99", "update")

    def test_an_empty_file(self, telens, tmp_path, command):
        path = tmp_path / "rank00000.h5"
        path.touch()
        expect_one_line_error(telens(command, path), "empty file")

    @pytest.mark.parametrize("kept", [100, 3000, 20000])
    def test_a_truncated_file(self, telens, run_file, tmp_path, command, kept):
        path = tmp_path / "rank00000.h5"
        path.write_bytes(run_file.read_bytes()[:kept])
        expect_one_line_error(telens(command, path), str(path))


@pytest.mark.parametrize("command", ["stats", "plot"])
class TestWrongUse:
    def test_an_empty_run(self, telens, write_run, command):
        expect_one_line_error(telens(command, write_run(iterations=0)), "does not contain records")

    def test_an_unknown_statistic_names_the_nearest(self, telens, log_dir, command):
        result = telens(command, log_dir, "--stat", "underflow%")
        expect_one_line_error(result, "'underflow%'", "'underflows%'")

    def test_an_unknown_tensor_and_gemm(self, telens, log_dir, command):
        expect_one_line_error(telens(command, log_dir, "--tensor", "weights"), "'weights'")
        expect_one_line_error(telens(command, log_dir, "--gemm", "fpro"), "'fprop'")

    def test_a_layer_that_does_not_exist(self, telens, log_dir, command):
        expect_one_line_error(telens(command, log_dir, "--layer", "conv"), "conv", "4 layers")

    def test_a_regular_expression_that_is_none(self, telens, log_dir, command):
        expect_one_line_error(telens(command, log_dir, "--layer", "fc1("), "fc1(")

    @pytest.mark.parametrize("text", ["a:b", "5:1", "1:2:3", "1.5"])
    def test_iterations_that_are_none(self, telens, log_dir, command, text):
        expect_one_line_error(telens(command, log_dir, "--iterations", text), text)

    def test_a_rank_that_is_not_there(self, telens, log_dir, command):
        expect_one_line_error(telens(command, log_dir, "--rank", "7"), "rank 7")


class TestAnInterruptedRun:
    @pytest.fixture
    def living(self, tmp_path):
        arguments = [WRITE_RUN, str(tmp_path), "run", "-1"]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "recorded\n"
            yield process, tmp_path
            process.kill()

    def test_live_run_can_be_read(self, telens, living):
        _, log_dir = living
        assert "being written" in telens("info", log_dir).stdout
        assert len(rows_of(telens("stats", log_dir, "--format", "csv"))) == 8
        expect_one_line_error(telens("repair", log_dir), "a process is writing it")

    def test_killed_run_is_complete_and_repairable(self, telens, living):
        process, log_dir = living
        process.kill()
        process.wait()
        path = log_dir / "telens/run/rank00000.h5"
        before = telens("stats", log_dir, "--format", "csv").stdout
        assert "not closed" in telens("info", log_dir).stdout
        with pytest.raises(OSError, match=r"consistency|already open|write"):
            h5py.File(path, "r")
        assert telens("repair", log_dir).stdout == f"{path}: repaired, 1441 records\n"
        assert telens("repair", log_dir).stdout == f"{path}: nothing to do\n"
        with h5py.File(path, "r") as file:
            assert len(file["records"]) == 40 * 4 * 9 + 1
        assert telens("stats", log_dir, "--format", "csv").stdout == before
        assert "killed, repaired" in telens("info", log_dir).stdout


def test_an_empty_run_has_info(telens, write_run):
    result = telens("info", write_run(iterations=0))
    assert result.returncode == 0
    assert "none" in result.stdout


@pytest.mark.parametrize("arguments", [[], ["explode"], ["stats"], ["stats", "--format", "xml"]])
def test_wrong_use_is_exit_code_2(telens, arguments):
    result = telens(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("telens: ")


def test_an_output_that_cannot_be_written(telens, log_dir, tmp_path):
    (tmp_path / "file").touch()
    expect_one_line_error(
        telens("plot", log_dir, "--out", tmp_path / "file/x.html"), "cannot write"
    )
    for picture in ("x.png", "x.svg"):
        result = telens("plot", log_dir, "--out", tmp_path / picture)
        expect_one_line_error(result, "ends in .html", "save each chart as PNG")


def test_command_starts_without_libtorch():
    """The command starts in milliseconds; loading LibTorch would take half a second."""
    loaded = subprocess.run(["ldd", COMMAND], check=True, capture_output=True, text=True).stdout
    libraries = [line.split()[0] for line in loaded.splitlines()]  # also those of libraries
    assert any(library.startswith("libhdf5") for library in libraries)
    assert not [library for library in libraries if "torch" in library or "c10" in library]
