"""Runs as datasets of Parquet files, and the results of DuckDB, pandas and pyarrow on them.

Needs pyarrow and DuckDB, which `make test-tables` installs beside .venv: with pyarrow in it, pandas
would keep texts in another way in all other tests.
"""

import pathlib
import re
import warnings

import numpy
import pandas
import pytest
import torch

import telens
import telens.debug as debug
import telens.pytorch as te

REASON = "is not installed: run `make test-tables`"
pyarrow = pytest.importorskip("pyarrow", reason=f"pyarrow {REASON}")
duckdb = pytest.importorskip("duckdb", reason=f"DuckDB {REASON}")

RANKS, STEPS = 4, 6
OUTLIER, BROKEN = 2, 3  # ranks whose data differ from the others'
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "run_file.md"

STATISTICS = {"enabled": True, "tensors": ["activation"], "stats": ["max", "std"]}
HISTOGRAM = {"enabled": True, "tensors": ["activation"], "freq": 3}
CONFIG = {
    "all": {
        "enabled": True,
        "layers": {"layer_types": "all"},
        "transformer_engine": {"LogTensorStats": STATISTICS},
        "telens": {"ValueHistogram": HISTOGRAM},
    }
}


def train(log_dir, rank):
    torch.manual_seed(1)
    layer = te.Linear(32, 32, name="fc1")
    batch = torch.randn(16, 32) * (1000 if rank == OUTLIER else 1 + rank / 100)
    with debug.session(CONFIG, log_dir=log_dir):
        for step in range(STEPS):
            loss = layer(batch).square().mean()
            loss.backward()
            broken = rank == BROKEN and step >= 4
            debug.step(loss=float("nan") if broken else float(loss.detach()))


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TELENS_RUN_ID", "run")
        environment.setenv("WORLD_SIZE", str(RANKS))
        for rank in range(RANKS):
            environment.setenv("RANK", str(rank))
            train(folder, rank)
    return folder


@pytest.fixture(scope="module")
def run(log_dir):
    return telens.open_run(log_dir)


@pytest.fixture(scope="module")
def dataset(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dataset")
    run.to_parquet(folder)
    return folder


def same_rows(table, expected):
    """Asserts that a table has the same rows, in any order and with any kind of text."""
    tables = []
    for each in (table, expected):
        plain = each[sorted(each.columns)].copy()
        for name in plain.columns:
            if not pandas.api.types.is_numeric_dtype(plain[name]):
                plain[name] = plain[name].astype(object).where(plain[name].notna(), None)
        plain["rank"] = plain["rank"].astype("int64")
        tables.append(plain.sort_values(list(plain.columns)).reset_index(drop=True))
    pandas.testing.assert_frame_equal(*tables, check_dtype=False, check_column_type=False)


@pytest.mark.parametrize("table", ["records", "histograms", "scalars"])
def test_pandas_reads_the_same_as_open_run(run, dataset, table):
    expected = getattr(run, table)() if table != "scalars" else run.scalars
    assert len(expected) > 0
    same_rows(pandas.read_parquet(dataset / table), expected)


@pytest.mark.parametrize("table", ["records", "histograms", "scalars"])
def test_duckdb_reads_the_same_as_open_run(run, dataset, table):
    expected = getattr(run, table)() if table != "scalars" else run.scalars
    same_rows(duckdb.sql(f"FROM '{dataset}/{table}/*/*.parquet'").df(), expected)


def test_dataset_has_a_folder_per_rank_and_reports_row_count(run, tmp_path):
    rows = run.to_parquet(tmp_path / "new")
    assert rows["records"] == len(run.records())
    assert rows["histograms"] == len(run.histograms())
    assert rows["scalars"] == RANKS * STEPS
    assert set(rows) == {path.name for path in (tmp_path / "new").iterdir()}
    folders = {path.name for path in (tmp_path / "new" / "records").iterdir()}
    assert folders == {f"rank={rank}" for rank in range(RANKS)}
    assert not list(tmp_path.rglob(".*"))
    file = pyarrow.parquet.ParquetFile(tmp_path / "new/records/rank=0/part-0.parquet")
    assert file.schema_arrow.names[:2] == ["iteration", "layer"]
    assert file.schema_arrow.names[-1] == "value"


def test_a_folder_that_is_not_empty_is_refused(run, dataset):
    with pytest.raises(telens.UsageError, match="folder must be a folder that is empty or new"):
        run.to_parquet(dataset)
    with pytest.raises(telens.UsageError, match="folder must be a path"):
        run.to_parquet(3)


def test_non_utf8_path_is_written(run, tmp_path):
    folder = tmp_path / b"\xff".decode(errors="surrogateescape")
    assert run.to_parquet(folder)["records"] == len(run.records())
    assert (folder / "records" / "rank=0" / "part-0.parquet").stat().st_size > 0


def test_the_bar_ends_at_all_rows(run, tmp_path, capsys):
    run.to_parquet(tmp_path / "quiet")
    assert capsys.readouterr().err == ""
    run.to_parquet(tmp_path / "shown", progress=True)
    last = capsys.readouterr().err.split("\r")[-1]
    rows = len(run.records())
    assert last == f"to_parquet [{'#' * 30}] 100%  {rows:,} of {rows:,} rows\n"


def test_the_bar_of_a_run_that_was_resumed_ends_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TELENS_RUN_ID", "run")
    for _ in range(2):  # the same iterations again, of which the later ones count
        train(tmp_path / "log", 0)
    run = telens.open_run(tmp_path / "log")
    run.to_parquet(tmp_path / "new", progress=True)
    rows = len(run.records())
    assert 2 * rows == run.segments["records"].sum()
    last = capsys.readouterr().err.split("\r")[-1]
    assert last == f"to_parquet [{'#' * 30}] 100%  {rows:,} of {rows:,} rows\n"


def test_a_failure_leaves_no_half_file(run, tmp_path, monkeypatch):
    def fail(self, table):
        raise OSError("no space left")

    monkeypatch.setattr(pyarrow.parquet.ParquetWriter, "write_table", fail)
    with pytest.raises(OSError, match="no space left"):
        run.to_parquet(tmp_path / "new")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_rank_that_is_still_starting_costs_only_itself(log_dir, tmp_path):
    starting = log_dir / "telens" / "run" / "rank00007.h5"
    starting.write_bytes(b"")
    try:
        with pytest.warns(UserWarning, match=r"rank00007\.h5.*the run is read without it"):
            run = telens.open_run(log_dir)
    finally:
        starting.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run.to_parquet(tmp_path / "new")["scalars"] == RANKS * STEPS


# ---- the questions of docs/run_file.md


def queries():
    return re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def answers(dataset, monkeypatch):
    """For the page's queries, which name the dataset ``run_parquet``."""
    folder = dataset.parent / "here"
    folder.mkdir(exist_ok=True)
    if not (folder / "run_parquet").exists():
        (folder / "run_parquet").symlink_to(dataset)
    monkeypatch.chdir(folder)
    found = [duckdb.sql(query).df() for query in queries()]
    assert len(found) == 3
    return found


def test_the_first_query_finds_the_rank_that_is_unlike_the_others(run, answers):
    records = run.records(statistic="max")
    by_rank = records.groupby("rank")["value"].max()
    worst = answers[0].iloc[0]
    assert worst["rank"] == OUTLIER
    assert worst["highest"] == by_rank[OUTLIER]
    assert worst["times"] == pytest.approx(by_rank[OUTLIER] / by_rank.median())


def test_second_query_finds_the_first_non_finite_loss(answers):
    assert answers[1].iloc[0][["rank", "iteration", "name"]].tolist() == [BROKEN, 4, "loss"]
    assert len(answers[1]) == 1


def test_third_query_gives_the_spread_per_iteration(run, answers):
    records = run.records(statistic="std")
    spread = records.groupby("iteration")["value"].agg(["min", "median", "max"])
    expected = spread.loc[answers[2]["iteration"]].to_numpy()
    numpy.testing.assert_allclose(answers[2][["lowest", "median", "highest"]], expected)
    assert len(answers[2]) == STEPS
