"""Malicious run files: each subcommand refuses them with one line and touches nothing else."""

import gzip
import os
import pathlib
import resource
import shutil
import struct
import subprocess

import h5py
import numpy as np
import pytest
from campaign import MEGABYTES, SECRET, run_all_commands
from damaged_bytes import lookup3, metadata_blocks
from hostile_files import changes, open_for_change
from stored_rows import store

ROOT = pathlib.Path(__file__).resolve().parents[2]
WRITERS = pathlib.Path(os.environ.get("TELENS_WRITERS", ROOT / "build/tests"))
COMMAND = os.environ.get("TELENS_COMMAND", str(ROOT / "build/bin/telens"))


@pytest.fixture(scope="module")
def run_all(tmp_path_factory):
    """Run each subcommand. None may crash, hang or print data that is not in the file."""
    folder = tmp_path_factory.mktemp("written")
    reader = run_all_commands(WRITERS / "all_commands", folder)

    def run(path):
        results = {each["command"]: each for each in reader.read(path)["results"]}
        for command, result in results.items():
            assert result.get("code") in (0, 1, 2), (command, result)
            assert not result["leaked"], command
        return results

    run.copy = folder / "copy" / path_of_a_run
    yield run
    reader.close()


path_of_a_run = "rank00000.h5"
# In the header of an extensible array, by which HDF5 finds chunks.
MAX_INDEX_SET = 44


@pytest.fixture(scope="session")
def intact(tmp_path_factory):
    """Files with all tables and with histograms, to be changed."""
    folder = tmp_path_factory.mktemp("intact")
    subprocess.run([WRITERS / "write_run", folder / "all", "run", "40"], check=True)
    subprocess.run([WRITERS / "write_histograms", folder / "histograms", "0"], check=True)
    return {path.name: next(path.rglob("rank00000.h5")) for path in folder.iterdir()}


@pytest.fixture
def outside(tmp_path):
    path = tmp_path / "outside.bin"
    path.write_text(SECRET * 40_000)
    return path


@pytest.fixture
def run_file(tmp_path):
    return tmp_path / path_of_a_run


@pytest.fixture
def expect_refusal(run_all):
    """Every subcommand prints one line with the file and the object, and keeps the file."""

    def expect(path, name):
        for command, result in run_all(path).items():
            assert result["code"] == 2, command
            assert result["err"].count("\n") == 1, (command, result["err"])
            assert path_of_a_run in result["err"], result["err"]
            assert name in result["err"], result["err"]
        assert run_all.copy.read_bytes() == path.read_bytes()  # after repair

    return expect


def changed(intact, run_file, change):
    shutil.copy(intact, run_file)
    with open_for_change(run_file) as file:
        change(file)


def filled(column, value, path="records"):
    """Return a change that sets a column of all rows to one value."""

    def change(file):
        rows = file[path][:]
        if len(rows) == 0:
            rows = np.zeros(4, dtype=rows.dtype)
        rows[column] = value
        store(file, path, rows)

    return change


REACHING_OUT = (
    *("a link to another file", "external storage", "a virtual dataset", "a soft link"),
    *("a second name of another object", "the root", "a named type"),
)


@pytest.mark.parametrize("kind", REACHING_OUT)
@pytest.mark.parametrize("name", ["config", "names", "names/word", "records_tail", "events"])
def test_data_outside_of_the_file_is_refused(intact, run_file, expect_refusal, outside, name, kind):
    if name == "names" and kind == "external storage":
        pytest.skip("a group has no storage")
    change = changes(intact["all"], outside)[f"{name} becomes {kind}"]
    changed(intact["all"], run_file, change)
    expect_refusal(run_file, name)
    assert outside.read_text() == SECRET * 40_000


def test_unknown_filter_is_refused(intact, run_file, expect_refusal, outside):
    change = changes(intact["all"], outside)["records gets a filter that nobody knows"]
    changed(intact["all"], run_file, change)
    # HDF5 refuses it too, but only after searching for a plugin.
    expect_refusal(run_file, "the filters [")


@pytest.mark.parametrize(
    "name", ["schema_version", "telens_version", "run_id", "rank", "world_size", "start_time"]
)
@pytest.mark.parametrize("value", [np.arange(4096), np.zeros(9, "f4,f4"), "text of any length"])
def test_attribute_of_wrong_type_or_shape_is_refused(intact, run_file, expect_refusal, name, value):
    changed(intact["all"], run_file, lambda file: file.attrs.__setitem__(name, value))
    expect_refusal(run_file, f"attribute {name}:")


@pytest.mark.parametrize("table", ["records", "histograms", "ledger", "blocks"])
@pytest.mark.parametrize("data", [np.arange(4096), np.float64(1), np.arange(1)])
def test_count_must_be_one_integer(intact, run_file, expect_refusal, table, data):
    def change(file):
        del file[table + "_count"]
        file[table + "_count"] = data

    changed(intact["all"], run_file, change)
    expect_refusal(run_file, table + "_count")


@pytest.mark.parametrize("table", ["records", "histograms", "ledger", "blocks"])
@pytest.mark.parametrize("rows", [0, 2**40])
def test_tail_of_wrong_length_is_refused(intact, run_file, expect_refusal, table, rows):
    def change(file):
        tail = file[table + "_tail"].dtype
        del file[table + "_tail"]
        file.create_dataset(table + "_tail", shape=(rows,), dtype=tail)

    for kind in ("all", "histograms"):
        changed(intact[kind], run_file, change)
        expect_refusal(run_file, table + "_tail")


def test_more_rows_than_fit_the_file_are_refused(intact, run_file, expect_refusal):
    """2^30 rows of blocks without stored data: reading them would take 40 GiB."""
    changed(intact["all"], run_file, lambda file: file["blocks"].resize((2**30,)))
    expect_refusal(run_file, "blocks")


@pytest.mark.parametrize("table", ["records", "histograms", "ledger", "blocks"])
def test_packed_single_row_chunks_are_rejected(intact, run_file, expect_refusal, outside, table):
    """A reader would open each chunk separately."""
    change = changes(intact["all"], outside)[f"{table} gets packed chunks of one row"]
    changed(intact["all"], run_file, change)
    expect_refusal(run_file, f"{table}: expected chunks of 256 to")


@pytest.mark.skipif("TELENS_SANITIZED" in os.environ, reason="limits are of an optimized build")
@pytest.mark.parametrize("table", ["ledger", "blocks"])
def test_highly_compressed_rows_do_not_fill_memory(intact, run_file, outside, table):
    change = changes(intact["all"], outside)[f"{table} inflates a thousandfold"]
    changed(intact["all"], run_file, change)
    assert run_file.stat().st_size < 4 << 20

    def with_little_memory(subcommand):
        limit = (MEGABYTES << 20, MEGABYTES << 20)
        return subprocess.run(
            [COMMAND, subcommand, run_file],
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
        )

    assert with_little_memory("info").returncode == 0
    answer = with_little_memory(table)
    if table == "ledger":  # the ledger is printed completely
        assert answer.returncode == 2
        assert "ledger: more than 4194304 rows" in answer.stderr
    else:
        assert answer.returncode == 0, answer.stderr
    with open_for_change(run_file) as file:
        store(file, "end", file["end"][:0])
    repair = with_little_memory("repair")
    assert repair.returncode == 0, repair.stderr


def test_repair_that_would_lose_rows_keeps_the_original(intact, run_file, run_all):
    """A copy joins bins and records in order; these bins are in another order."""

    def change(file):
        rows = file["histograms"][:]
        store(file, "histograms", rows[np.argsort(-rows["record"], kind="stable")])
        store(file, "end", file["end"][:0])

    changed(intact["histograms"], run_file, change)
    repair = run_all(run_file)["repair {copy}"]
    assert repair["code"] == 2, repair
    assert "the repaired file does not hold the same rows" in repair["err"]
    assert run_all.copy.read_bytes() == run_file.read_bytes()


@pytest.mark.parametrize("column", ["kind", "text", "layer"])
@pytest.mark.parametrize("value", [-(2**31), -2, -1, 2**31 - 1])
def test_unknown_ids_do_not_crash(intact, run_file, run_all, column, value):
    changed(intact["all"], run_file, filled(column, value, "events"))
    run_all(run_file)


@pytest.mark.parametrize("column", ["layer", "tensor", "gemm", "statistic", "scope"])
@pytest.mark.parametrize("value", [-(2**15), -2, 2**15 - 1])
def test_records_with_unknown_names_do_not_crash(intact, run_file, run_all, column, value):
    for kind in ("all", "histograms"):
        changed(intact[kind], run_file, filled(column, value))
        run_all(run_file)


def test_extreme_iterations_do_not_crash(intact, run_file, run_all):
    def change(file):
        rows = file["records"][:]
        rows["iteration"][:2] = (-(2**63), 2**63 - 1)
        rows["iteration"][-2:] = (2**63 - 1, -(2**63))
        store(file, "records", rows)

    for kind in ("all", "histograms"):
        changed(intact[kind], run_file, change)
        run_all(run_file)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.7e308, 5e-324])
def test_unordered_values_do_not_crash(intact, run_file, run_all, value):
    def change(file):
        rows = file["records"][:]
        rows["value"][::2] = value
        store(file, "records", rows)

    changed(intact["all"], run_file, change)
    run_all(run_file)


@pytest.mark.parametrize("column", ["record", "bin", "count"])
@pytest.mark.parametrize("value", [2**63 - 1, 2**40, 0])
def test_extreme_bins_do_not_crash(intact, run_file, run_all, column, value):
    changed(intact["histograms"], run_file, filled(column, value, "histograms"))
    run_all(run_file)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e300, 1e300])
def test_invalid_times_do_not_crash(intact, run_file, run_all, value):
    def change(file):
        file.attrs["start_time"] = value
        end = file["end"][:]
        end["time"] = value
        store(file, "end", end)

    changed(intact["all"], run_file, change)
    assert run_all(run_file)["info {run}"]["code"] == 0


def test_pipe_is_refused(run_file):
    """Opening the pipe would wait for a writer."""
    os.mkfifo(run_file)
    for subcommand in ("info", "repair"):
        result = subprocess.run([COMMAND, subcommand, run_file], capture_output=True, timeout=20)
        assert result.returncode == 2


def test_older_hdf5_format_is_refused(intact, run_file, expect_refusal):
    """Its metadata has no checksums."""
    with h5py.File(intact["all"], "r") as old, h5py.File(run_file, "w", libver="earliest") as new:
        for name in old:
            old.copy(name, new)
        new.attrs.update(old.attrs)
    expect_refusal(run_file, "superblock")


def metadata_changed(content, signature, change):
    """Apply change(content, begin, end) to each block of a kind and correct its checksum."""
    content = bytearray(content)
    blocks = [
        each for each in metadata_blocks(bytes(content)) if content.startswith(signature, each[0])
    ]
    assert blocks
    for begin, length, place in blocks:
        change(content, begin, begin + length)
        checksum = lookup3(bytes(content[begin : begin + length]))
        struct.pack_into("<I", content, begin + place, checksum)
    return content


# Offsets are those of HDF5's file format; record/metadata_check.cpp has the limits.
@pytest.mark.parametrize(
    ("signature", "place", "kind", "value"),
    [
        (b"BTHD", 5, "<B", 1),  # the heap's tree of large objects: HDF5 followed a null pointer
        (b"BTHD", 5, "<B", 9),  # attributes by order instead of link names
        (b"BTHD", 6, "<I", 2**32 - 1),  # bytes of a node: HDF5 allocated 7 GB
        (b"BTHD", 10, "<H", 0),  # bytes of a record, the divisor of a node's size
        (b"BTHD", 12, "<H", 2**16 - 1),  # levels
        (b"BTHD", 24, "<H", 2**16 - 1),  # records of the root, read beyond its end
        (b"FRHP", 110, "<H", 2**15),  # blocks in a row
        (b"FRHP", 120, "<Q", 2**40),  # bytes of the largest direct block
        (b"FRHP", 128, "<H", 3),  # bits of an offset, fewer than for a row: 2^32 rows
        (b"FRHP", 140, "<H", 2**16 - 1),  # rows
    ],
)
def test_metadata_with_huge_sizes_is_refused(
    intact, run_file, expect_refusal, signature, place, kind, value
):
    content = metadata_changed(
        intact["all"].read_bytes(),
        signature,
        lambda content, begin, _: struct.pack_into(kind, content, begin + place, value),
    )
    run_file.write_bytes(content)
    expect_refusal(run_file, signature.decode())


def with_many_attributes(intact, run_file):
    """Add so many attributes that their B-tree has two levels."""

    def annotate(file):
        for i in range(250):
            file.attrs[f"own {i}"] = i

    changed(intact["all"], run_file, annotate)
    return run_file.read_bytes()


def test_many_extra_attributes_are_accepted(intact, run_file):
    assert b"BTIN" in with_many_attributes(intact, run_file)
    assert subprocess.run([COMMAND, "info", run_file], capture_output=True).returncode == 0


def test_inner_node_with_too_many_records_is_refused(intact, run_file, expect_refusal):
    """The record count of the first child follows its address and the node's own records."""
    content = with_many_attributes(intact, run_file)
    records = struct.unpack_from("<H", content, content.rfind(b"BTHD") + 24)[0]

    def change(content, begin, _):
        content[begin + 6 + 17 * records + 8] = 255

    run_file.write_bytes(metadata_changed(content, b"BTIN", change))
    expect_refusal(run_file, "BTIN")


@pytest.mark.parametrize(
    ("name", "place"),
    [(b"rank", 8), (b"rank", 10), (b"start_time", 8), (b"start_time", 10), (b"start_time", 12)],
)
def test_attribute_with_bits_outside_its_bytes_is_refused(
    intact, run_file, expect_refusal, name, place
):
    """HDF5 would read the bits from adjacent memory.

    The type has from byte 8 on: the first bit, the number of bits, and for reals the position of
    the exponent.
    """

    def change(content, begin, end):
        at = content.find(name + b"\0", begin, end)
        if at >= 0:
            content[at + len(name) + 1 + place] += 100

    run_file.write_bytes(metadata_changed(intact["all"].read_bytes(), b"OHDR", change))
    expect_refusal(run_file, f"attribute {name.decode()}:")


def test_object_header_of_half_a_gigabyte_is_refused(intact, run_file, expect_refusal):
    """HDF5 would read zeros for its second part, repeatedly."""

    def grow(file):
        for i in range(4):
            file["events"].attrs[f"own {i}"] = np.bytes_(b"x" * 200)

    changed(intact["all"], run_file, grow)
    content = run_file.read_bytes()
    parts = [
        begin for begin, _, _ in metadata_blocks(content) if content.startswith(b"OCHK", begin)
    ]
    assert parts

    def lengthen(content, begin, end):
        for part in parts:
            at = content.find(struct.pack("<Q", part), begin, end)
            if at >= 0:
                struct.pack_into("<Q", content, at + 8, 2**29)

    run_file.write_bytes(metadata_changed(content, b"OHDR", lengthen))
    expect_refusal(run_file, "longer than the file")


def test_index_claiming_2_to_40_chunks_is_not_iterated(run_file, run_all):
    """A file without checksums, whose tables are checked for rows that were never stored."""
    old = ROOT / "tests/inspector_cli/data/closed_schema_1.h5.gz"
    content = metadata_changed(
        gzip.decompress(old.read_bytes()),
        b"EAHD",
        lambda content, begin, _: struct.pack_into("<Q", content, begin + MAX_INDEX_SET, 2**40),
    )
    run_file.write_bytes(content)
    run_all(run_file)
