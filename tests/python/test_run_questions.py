"""Answers of telens.open_run and its tables for names, ranges and folders."""

import warnings

import numpy
import pytest
import torch
from debug_helpers import logging_of, train

import telens
import telens.debug as debug
import telens.pytorch as te


def record(log_dir, name: str = "layers.0.fc1", steps: int = 3) -> str:
    torch.manual_seed(1)
    layer = te.Linear(32, 32, name=name)
    with debug.session(logging_of(["activation", "weight"], ["max", "std"]), log_dir=log_dir):
        train(layer, torch.randn(16, 32), steps=steps)
        return debug.run_path()


@pytest.fixture
def run(tmp_path) -> telens.Run:
    record(tmp_path)
    return telens.open_run(tmp_path)


def test_repr_of_a_run_names_its_path_and_contents(tmp_path):
    record(tmp_path)
    run = telens.open_run(tmp_path)
    # Three iterations of two tensors with the statistics max and std.
    assert repr(run) == f"Run({str(tmp_path)!r}: 1 rank, 1 layer, {len(run.records())} records)"


def refused(text: str):
    return pytest.raises(telens.UsageError, match=text)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ({"statistic": "mx"}, r"statistic must be one of .*, not 'mx' \(did you mean 'max'\?\)"),
        ({"statistic": "mean"}, "statistic must be one of max, std, nan, .*, not 'mean'"),
        ({"tensor": "wieght"}, r"not 'wieght' \(did you mean 'weight'\?\)"),
        ({"layer": "fc2$"}, "layer must be a pattern that fits one of layers.0.fc1, not 'fc2"),
        ({"layer": "fc("}, r"layer must be a regular expression \("),
        ({"layer": 3}, "layer must be a regular expression"),
        ({"rank": 1}, "rank must be one of 0, not 1"),
        ({"rank": "0"}, "rank must be one of 0, not '0'"),
        ({"iterations": 3}, r"iterations must be a pair \(first, last\)"),
        ({"iterations": (1, 2, 3)}, "iterations must be a pair"),
        ({"iterations": (0.5, 2)}, "iterations must be a pair"),
    ],
)
@pytest.mark.parametrize("table", ["records", "histograms", "blocks"])
def test_missing_name_error_suggests_the_nearest(run, question, answer, table):
    if table == "histograms" and "statistic" in question:
        pytest.skip("histograms take no statistic")
    with refused(answer):
        getattr(run, table)(**question)


def test_existing_names_are_accepted(run):
    assert len(run.records(statistic="max", tensor="weight", rank=0)) == 3
    assert len(run.records(layer="fc1", iterations=(1, None), statistic="std")) == 4
    assert len(run.records(iterations=(numpy.int64(2), 2), statistic="max")) == 2


@pytest.mark.parametrize("table", ["records", "histograms", "blocks"])
def test_name_without_rows_selects_nothing(run, tmp_path, table):
    assert run.names("gemm") == []
    assert len(run.records()) > 0
    assert len(run.records(gemm="fprop")) == 0
    with debug.session("", log_dir=tmp_path / "empty"):
        debug.step()
    empty = telens.open_run(tmp_path / "empty")
    assert len(getattr(empty, table)(layer="fc1", tensor="weight")) == 0
    with refused("layer must be a regular expression"):
        getattr(empty, table)(layer="fc(")


@pytest.mark.parametrize("table", ["records", "histograms", "blocks", "table"])
def test_an_argument_that_a_table_lacks_is_named_with_the_nearest_one(run, table):
    with pytest.raises(TypeError, match=rf"Run.{table}: .*'layers' \(did you mean 'layer'\?\)"):
        getattr(run, table)(layers="fc1")


def test_an_unknown_kind_of_names_is_refused(run):
    assert run.names("layer") == ["layers.0.fc1"]
    with refused(r"kind must be one of layer, .*, not 'layr' \(did you mean 'layer'\?\)"):
        run.names("layr")


def test_empty_run_accepts_any_name(tmp_path):
    with debug.session("", log_dir=tmp_path):
        debug.step(loss=1.0)
    run = telens.open_run(tmp_path)
    assert len(run.records(statistic="max", layer="fc1")) == 0
    assert list(run.losses) == [1.0]


# ---- several runs in one log_dir


def test_newest_run_is_opened_and_named(tmp_path, monkeypatch):
    for run_id, name in (("b", "first"), ("a", "second")):
        monkeypatch.setenv("TELENS_RUN_ID", run_id)
        record(tmp_path, name)
    with pytest.warns(UserWarning, match=r"the newest of 2 runs in .*: a\. .*telens/b$") as caught:
        run = telens.open_run(tmp_path)
    assert run.names("layer") == ["second"]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert telens.open_run(tmp_path / "telens" / "b").names("layer") == ["first"]


@pytest.mark.parametrize("path", [None, 3, ["logs"]])
def test_rejects_values_that_are_not_paths(path):
    with refused("open_run: path must be a path, not"):
        telens.open_run(path)
