"""Messages for names and numbers in arguments that are wrong."""

import pytest
from command_results import expect_one_line_error


@pytest.mark.parametrize(
    ("written", "meant"),
    [("stat", "stats"), ("Info", "info"), ("what-if", "whatif"), ("new_plugin", "new-plugin")],
)
def test_misspelt_subcommand_suggests_nearest_name(telens, written, meant):
    result = telens(written, "some/run")
    expect_one_line_error(result, f"unknown subcommand '{written}' (did you mean '{meant}'?)")


def test_unknown_subcommand_lists_all(telens):
    expect_one_line_error(telens("explode"), "unknown subcommand 'explode'; expected one of 'info'")
    expect_one_line_error(telens(), "a subcommand is missing; expected one of 'info'", "'whatif'")


@pytest.mark.parametrize("written", [["--fromat", "csv"], ["--fromat=csv"]])
def test_misspelt_option_suggests_nearest_name(telens, written):
    result = telens("stats", "some/run", *written)
    expect_one_line_error(
        result, "stats: unknown option --fromat (did you mean '--format'?)", "stats --help"
    )


@pytest.mark.parametrize(
    ("written", "command"),
    [(["--format", "json"], "stats"), (["--format=json"], "stats"), (["-o", "x.html"], "report")],
)
def test_option_before_subcommand_explains_position(telens, written, command):
    option = written[0].partition("=")[0]
    expect_one_line_error(
        telens(*written, command, "some/run"),
        f"{command}: {option} must follow the subcommand: telens {command} ... {option}",
    )


def test_abbreviation_suggests_full_name(telens, lines, tmp_path):
    for tensor in ("dgrad", "wgrad", "gradient"):
        lines.record(0, "fc1", tensor, "max", 1)
    result = telens("stats", lines.write(tmp_path), "--tensor", "grad")
    expect_one_line_error(result, "no tensor 'grad' (did you mean 'gradient'?)")


def test_missing_and_extra_arguments_name_subcommand(telens):
    expect_one_line_error(telens("info"), "info: RUN is required; see `telens info --help`")
    expect_one_line_error(telens("info", "one", "two"), "info: ", "not expected: two")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["stats", "run", "--top", "0"], "--top: expected a whole number from 1, got '0'"),
        (["whatif", "run", "--top", "-1"], "--top: expected a whole number from 1, got '-1'"),
        (["stats", "run", "--top", "1.5"], "--top: expected a whole number from 1, got '1.5'"),
        (["stats", "run", "--top", "many"], "--top: expected a whole number from 1, got 'many'"),
        (["stats", "run", "--top", "3000000000"], "from 1 to 2147483647, got '3000000000'"),
        (["plot", "run", "--rank", "-1"], "--rank: expected a whole number from 0, got '-1'"),
        (["whatif", "run", "--history", "0"], "--history: expected a whole number from 1, got '0'"),
        (["whatif", "run", "--margin", "128"], "--margin: expected a whole number from -127 to"),
        (["plan", "a.yaml", "--layers", "b", "--iteration", "-1"], "--iteration: expected a whole"),
        (["watch", "run", "--interval", "0"], "more than 0 seconds and at most 3600, got '0'"),
        (["serve", "run", "--port", "abc"], "--port: expected a whole number from 0, got 'abc'"),
        (["serve", "run", "--port", "65536"], "--port: expected a whole number from 0 to 65535"),
        (["serve", "run", "--interval", "nan"], "more than 0 seconds and at most 3600, got 'nan'"),
        (["bisect", "--timeout", "1s", "false"], "more than 0 seconds and at most 2592000, got"),
    ],
)  # fmt: skip
def test_invalid_number_is_rejected(telens, arguments, expected):
    expect_one_line_error(telens(*arguments), arguments[0], expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["stats", "run", "--format", "jsn"],
            "expected one of 'csv', 'json', 'table', not 'jsn' ",
        ),
        (["whatif", "run", "--fp8-format", "E3M4"], "expected one of 'E4M3', 'E5M2', 'HYBRID', "),
    ],
)
def test_invalid_choice_lists_valid_ones(telens, arguments, message):
    result = telens(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert ">" not in result.stderr
