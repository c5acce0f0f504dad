"""telens info and plot with --format json, which has the same facts as their text."""

import json

import pytest
from command_results import expect_one_line_error


def parse(result):
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def test_info_json_has_the_facts_of_the_text(telens, log_dir):
    found = parse(telens("info", log_dir, "--format", "json"))
    text = telens("info", log_dir).stdout
    assert (found["run"], found["ranks"], found["layers"]) == ("run", 1, 4)
    assert found["state"] in text
    assert f"{found['records']}, " in text
    assert set(found["tensors"]) == {"activation", "gradient"}
    (file,) = found["files"]
    assert file["path"] in text
    assert (file["first_iteration"], file["last_iteration"]) == (0, 40)
    assert found["first_problems"]
    assert found["first_problems"][0] in text
    assert found["runs"] == []


def test_info_json_has_scalars_and_events_once_per_kind(telens, lines, tmp_path):
    for step in range(3):
        lines.scalar(step, "loss", 2.5 - step)
        lines.scalar(step, "nan", "nan")
    lines.warm_up(0, "fc1")
    lines.event(2, "message", "saved", "fc1")
    run = lines.write(tmp_path)
    found = parse(telens("info", run, "--format", "json"))
    assert found["records"] == 0
    loss, nan = found["scalars"]
    assert loss == {
        "name": "loss",
        "first_iteration": 0,
        "first": 2.5,
        "last_iteration": 2,
        "last": 0.5,
    }
    assert (nan["first"], nan["last"]) == ("NaN", "NaN")
    assert [(each["kind"], each["iteration"]) for each in found["events"]] == [("message", 2)]
    every = parse(telens("info", run, "--format", "json", "--events"))["events"]
    assert {each["kind"] for each in every} == {"message", "warm_up"}


def test_info_json_lists_all_runs_of_a_log_dir(telens, write_run):
    log_dir = write_run("first")
    write_run("second", log_dir=log_dir)
    found = parse(telens("info", log_dir, "--format", "json"))
    assert found["path"] == found["runs"][0]["path"]
    assert {each["path"].rpartition("/")[2] for each in found["runs"]} == {"first", "second"}


def test_plot_json_has_the_points_of_the_worst_tensors(telens, log_dir):
    found = parse(telens("plot", log_dir, "--stat", "nonfinite", "--format", "json"))
    assert (found["first_iteration"], found["last_iteration"], found["bins"]) == (0, 40, 41)
    (panel,) = found["statistics"]
    worst = panel["worst"][0]
    assert (panel["statistic"], worst["label"]) == ("nonfinite", "layers.2.fc1 activation")
    assert next(iteration for iteration, value in worst["points"] if value) == 30
    assert len(worst["points"]) == 40


def test_plot_json_separates_warm_up(telens, lines, tmp_path):
    for step in range(4):
        lines.record(step, "fc1", "activation", "overflows%", 9 - step)
    lines.warm_up(0, "fc1")
    found = parse(telens("plot", lines.write(tmp_path), "--format", "json"))
    (line,) = found["statistics"][0]["worst"]
    assert line["warm_up"] == [[0, 9]]
    assert line["points"] == [[1, 8], [2, 7], [3, 6]]


@pytest.mark.parametrize(
    ("command", "option"),
    [("info", "--config"), ("info", "--environment"), ("plot", "--histogram")],
)
def test_json_excludes_other_output(telens, log_dir, command, option):
    result = telens(command, log_dir, "--format", "json", option)
    expect_one_line_error(result, "--format", option)
