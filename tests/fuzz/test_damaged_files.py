"""A small fixed part of the campaign (campaign.py)."""

import os
import pathlib
import random
import shutil

import pytest
from campaign import BAD, Judge, Seeds, is_bad, run_all_commands
from damaged_bytes import damage
from hostile_files import changes, open_for_change
from stored_rows import store
from subcommands import command_lines

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TELENS_WRITERS", ROOT / "build/tests")).parent
EVERY = 97  # one of so many crafted files
DAMAGED = 30


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    return Seeds(BUILD, tmp_path_factory.mktemp("seeds"))


@pytest.fixture(scope="module")
def judge(seeds, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    reader = run_all_commands(BUILD / "tests/all_commands", folder)
    yield Judge(reader, None, seeds)
    reader.close()


def test_crafted_files_do_not_crash_hang_or_fill_memory(seeds, judge, tmp_path):
    target = tmp_path / "rank00000.h5"
    for name, path in seeds.files:
        if name == "killed":
            continue
        for change, apply in list(changes(path, seeds.outside).items())[::EVERY]:
            shutil.copy(path, target)
            try:
                with open_for_change(target) as file:
                    apply(file)
            except (KeyError, ValueError, TypeError, OSError, RuntimeError):
                continue
            verdict, details = judge.verdict(target, path)
            assert verdict not in BAD, (name, change, details)


def test_damaged_files_are_refused_or_reported(seeds, judge, tmp_path):
    target = tmp_path / "rank00000.h5"
    contents = {path: path.read_bytes() for _, path in seeds.files}
    for number in range(DAMAGED):
        numbered = random.Random(number)
        name, path = numbered.choice(seeds.files)
        change, content = damage(contents[path], numbered)
        target.write_bytes(content)
        verdict, details = judge.verdict(target, path)
        assert not is_bad(verdict, change), (name, number, change, verdict, details)


@pytest.fixture
def closed(seeds, tmp_path):
    """Return a copy of a file, to be changed, and the file."""
    target, path = tmp_path / "rank00000.h5", dict(seeds.files)["closed"]
    shutil.copy(path, target)
    return target, path


def test_all_command_lines_of_the_table_run(judge, closed):
    results = judge._all_commands.read(closed[0])["results"]
    ran = [result["command"] for result in results]
    assert sorted(ran) == sorted(["content {run}", "content {copy}", *command_lines("damaged")])


def test_campaign_recognizes_an_intact_file(judge, closed):
    assert judge.verdict(*closed)[0] == "the same"


def test_campaign_recognizes_a_refusal(judge, closed):
    with open_for_change(closed[0]) as file:
        del file["end"]
    assert judge.verdict(*closed)[0] == "refused"


def test_campaign_recognizes_reported_damage(judge, closed):
    content = bytearray(closed[0].read_bytes())
    with open_for_change(closed[0]) as file:
        begin = file["scalars"].id.get_chunk_info(0).byte_offset
    content[begin] ^= 1
    closed[0].write_bytes(content)
    verdict, _ = judge.verdict(*closed)
    assert verdict == "told"
    assert not is_bad(verdict, "flip_bits")


@pytest.mark.parametrize(("table", "column"), [("scalars", "value"), ("end", "time")])
def test_campaign_recognizes_a_silent_change(judge, closed, table, column):
    with open_for_change(closed[0]) as file:
        rows = file[table][:]
        rows[column] += 1
        store(file, table, rows)
    verdict, _ = judge.verdict(*closed)
    assert verdict == "silent"
    assert is_bad(verdict, "flip_bits")
    assert not is_bad(verdict, "change_metadata")


@pytest.mark.parametrize("what", ["out", "err"])
def test_campaign_recognizes_a_repair_that_loses_rows(judge, closed, monkeypatch, what):
    answer = judge._all_commands.read(closed[0])
    for result in answer["results"]:
        if result["command"] == "content {copy}":
            result[what] = "less than before"
    monkeypatch.setattr(judge._all_commands, "read", lambda path: answer)
    assert judge.verdict(*closed)[0] == "worse repair"
