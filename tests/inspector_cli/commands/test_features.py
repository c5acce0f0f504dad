"""telens features: the list, one feature, and the page docs/features.md."""

import json

import pytest
from command_results import expect_one_line_error, rows_of
from conftest import ROOT


def test_list_has_features_aliases_and_parameters(telens):
    rows = {row["feature"]: row for row in rows_of(telens("features", "--format", "csv"))}
    assert "LogFp8Stats" in rows["transformer_engine.LogFp8TensorStats"]["also"]
    assert rows["transformer_engine.FakeQuant"]["parameters"] == "quant_format"
    assert all(row["does"] for row in rows.values())
    assert json.loads(telens("features", "--format", "json").stdout)[0]["feature"] in rows
    assert telens("features").stdout.splitlines()[0].split() == [
        "feature", "also", "parameters", "does", "attached"
    ]  # fmt: skip


def test_list_says_which_features_work_on_attached_models(telens):
    attached = {
        row["feature"]: row["attached"] for row in rows_of(telens("features", "--format", "csv"))
    }
    assert attached["transformer_engine.LogTensorStats"] == "yes"
    assert attached["telens.Diagnosis"] == "yes"
    assert attached["telens.PrecisionLedger"].startswith("no: ")
    assert all(attached.values())
    line = f"\nOn models that telens.watch attaches to: {attached['telens.GemmError']}\n"
    assert line in telens("features", "GemmError").stdout


@pytest.mark.parametrize("name", ["transformer_engine.FakeQuant", "FakeQuant"])
def test_feature_help_has_parameters_and_example(telens, name):
    result = telens("features", name)
    assert result.returncode == 0
    assert result.stdout.startswith("transformer_engine.FakeQuant: ")
    assert "\n  quant_format: a string, required\n" in result.stdout
    assert "\nExample:\nFakeQuant:\n  enabled: True\n" in result.stdout


def test_a_name_in_two_namespaces_is_explained_for_both(telens):
    text = telens("features", "LogTensorStats").stdout
    assert "transformer_engine.LogTensorStats: " in text
    assert "\nbase.LogTensorStats: " in text
    assert "transformer_engine" not in telens("features", "base.LogTensorStats").stdout


def test_an_unknown_feature_names_the_nearest(telens):
    expect_one_line_error(telens("features", "FakeQant"), "'FakeQant'", "did you mean", "FakeQuant")
    expect_one_line_error(telens("features", "zzz"), "'zzz'", "telens features")


def test_markdown_excludes_a_feature_name(telens):
    expect_one_line_error(telens("features", "FakeQuant", "--markdown"), "--markdown")


def test_the_committed_page_is_the_generated_one(telens):
    generated = telens("features", "--markdown").stdout
    assert (ROOT / "docs/features.md").read_text() == generated, (
        "run: build/bin/telens features --markdown > docs/features.md"
    )


def test_help_has_examples(telens):
    assert "Examples:\n  telens features" in telens("features", "--help").stdout
