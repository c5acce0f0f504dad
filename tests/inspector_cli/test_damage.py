"""Damaged rows are counted and left out. Files of earlier schema versions can be read."""

import gzip
import os
import pathlib
import shutil
import subprocess

import h5py
import pytest
from command_results import expect_one_line_error

DATA = pathlib.Path(__file__).parent / "data"


def flip(path, dataset, byte):
    """Changes a byte of a dataset's only chunk, or of its only piece, in the file."""
    with h5py.File(path, "r", swmr=True) as file:
        opened = file[dataset]
        begin = opened.id.get_offset()
        if begin is None:
            begin = opened.id.get_chunk_info(0).byte_offset
    with open(path, "r+b") as file:
        file.seek(begin + byte)
        changed = file.read(1)[0] ^ 0x10
        file.seek(begin + byte)
        file.write(bytes([changed]))


@pytest.fixture
def damaged(run_file, tmp_path):
    path = tmp_path / "rank00000.h5"
    shutil.copy(run_file, path)
    flip(path, "scalars", 24 * 7)
    return path


def test_info_counts_damaged_rows_and_ends_well(telens, damaged):
    result = telens("info", damaged)
    assert result.returncode == 0
    assert "damaged" in result.stdout
    assert "1 row of scalars (7)" in result.stdout
    assert "1441 records" in result.stdout


def test_info_of_a_whole_run_knows_no_damage(telens, run_file):
    assert "damaged" not in telens("info", run_file).stdout


@pytest.mark.parametrize("command", ["stats", "plot"])
def test_other_commands_warn_and_continue(telens, run_file, tmp_path, command):
    path = tmp_path / "rank00000.h5"
    shutil.copy(run_file, path)
    flip(path, "names/layer", 256 * 2)
    result = telens(command, path)
    assert result.returncode == 0
    assert result.stderr.count("damaged") == 1
    assert "1 row of names/layer (2)" in result.stderr
    assert result.stdout


def test_repair_reports_dropped_rows(telens, damaged):
    result = telens("repair", damaged)
    assert result.returncode == 0
    assert (
        result.stdout
        == f"{damaged}: repaired, 1441 records; dropped damaged rows: 1 row of scalars (7)\n"
    )
    assert telens("repair", damaged).stdout == f"{damaged}: nothing to do\n"
    after = telens("info", damaged).stdout
    assert "repaired" in after
    assert "ended cleanly" in after


def test_truncated_file_is_not_called_repaired(telens, run_file, tmp_path):
    path = tmp_path / "rank00000.h5"
    path.write_bytes(run_file.read_bytes()[:200_000])
    expect_one_line_error(telens("info", path), "truncated or damaged", "copy it again")
    expect_one_line_error(telens("repair", path), "truncated or damaged", "copy it again")
    assert path.stat().st_size == 200_000


@pytest.mark.parametrize("kept", [10, 3000, -1])
def test_truncated_file_suggests_a_new_copy(telens, run_file, tmp_path, kept):
    path = tmp_path / "rank00000.h5"
    path.write_bytes(run_file.read_bytes()[:kept])
    for command in ("info", "stats", "repair"):
        expect_one_line_error(telens(command, path), str(path), "copy it again")


@pytest.mark.parametrize("kilobytes", [330, 400, 600])
def test_repair_on_full_disk_names_file_and_cause(telens, damaged, tmp_path, kilobytes):
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small tmpfs: {mounted.stderr.strip()}")
    try:
        path = folder / "rank00000.h5"
        shutil.copy(damaged, path)
        before = path.read_bytes()
        result = telens("repair", path)
        after, names = path.read_bytes(), os.listdir(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
    expect_one_line_error(
        result,
        f"telens: {path}: cannot be repaired",
        "No space left on device",
        "space for a second copy",
    )
    assert "errno" not in result.stderr
    assert (after, names) == (before, ["rank00000.h5"])


def test_failed_repair_does_not_stop_other_files(telens, write_run, tmp_path):
    log_dir = write_run(log_dir=tmp_path)
    write_run(log_dir=tmp_path, rank=1)
    folder = log_dir / "telens/run"
    (folder / "rank00000.h5").write_bytes((folder / "rank00000.h5").read_bytes()[:3000])
    flip(folder / "rank00001.h5", "scalars", 24 * 7)
    result = telens("repair", folder)
    assert result.returncode == 2
    assert "rank00001.h5: repaired" in result.stdout
    assert "rank00000.h5" in result.stderr


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_a_file_without_checksums_opens_as_ever(telens, tmp_path, log_dir, ending):
    path = tmp_path / "rank00000.h5"
    path.write_bytes(gzip.decompress((DATA / f"{ending}_schema_1.h5.gz").read_bytes()))
    result = telens("info", path)
    assert result.returncode == 0
    assert "damaged" not in result.stdout
    assert "1441 records" in result.stdout
    assert telens("stats", path).stdout == telens("stats", log_dir).stdout
    if ending == "killed":
        assert telens("repair", path).stdout == f"{path}: repaired, 1441 records\n"
        with h5py.File(path, "r") as file:
            assert file.attrs["schema_version"] == 3
            assert len(file["records"]) == 1441
        assert telens("stats", path).stdout == telens("stats", log_dir).stdout


def test_repeated_iterations_count_once(telens, write_run, tmp_path):
    for _ in range(2):
        write_run(log_dir=tmp_path)
    line = next(
        line for line in telens("info", tmp_path).stdout.splitlines() if line.startswith("records ")
    )
    assert line.split()[1] == "1441,"


def test_a_dataset_of_the_users_own_is_named_in_the_refusal(telens, run_file, tmp_path):
    for name in ("my_notes", "names/mine"):
        path = tmp_path / "rank00000.h5"
        shutil.copy(run_file, path)
        with h5py.File(path, "r+", libver="latest") as file:
            file[name] = [1, 2, 3]
        refusal = telens("info", path)
        assert refusal.returncode == 2
        group, _, own = name.rpartition("/")
        assert f"{path}: " in refusal.stderr
        assert f"({group or '/'}: expected only objects that TELens writes, " in refusal.stderr
        assert f"got '{own}' as well; remove it" in refusal.stderr
