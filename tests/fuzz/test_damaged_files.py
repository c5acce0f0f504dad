"""A small fixed part of the campaign: see campaign.py."""

import os
import pathlib
import random
import shutil

import pytest
from campaign import BAD, MEGABYTES, SECONDS, SECRET, Judge, Reader, Seeds
from damaged_bytes import damage
from hostile_files import changes, open_for_change

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TELENS_WRITERS", ROOT / "build/tests")).parent
EVERY = 23  # of the hand-made files
DAMAGED = 60


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    return Seeds(BUILD, tmp_path_factory.mktemp("seeds"))


@pytest.fixture(scope="module")
def judge(seeds, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    reader = Reader([BUILD / "tests/all_commands", folder, SECONDS, MEGABYTES, SECRET])
    yield Judge(reader, None, seeds)
    reader.close()


def test_no_hand_made_file_crashes_hangs_or_fills_the_memory(seeds, judge, tmp_path):
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


def test_no_damaged_file_crashes_hangs_or_fills_the_memory(seeds, judge, tmp_path):
    target = tmp_path / "rank00000.h5"
    contents = {path: path.read_bytes() for _, path in seeds.files}
    for number in range(DAMAGED):
        numbered = random.Random(number)
        name, path = numbered.choice(seeds.files)
        change, content = damage(contents[path], numbered)
        target.write_bytes(content)
        verdict, details = judge.verdict(target, path)
        assert verdict not in BAD, (name, number, change, details)


def test_the_campaign_notices_what_was_changed(seeds, judge, tmp_path):
    """An intact file is the same; one with another loss is not."""
    target = tmp_path / "rank00000.h5"
    path = dict(seeds.files)["closed"]
    shutil.copy(path, target)
    assert judge.verdict(target, path)[0] == "the same"
    with open_for_change(target) as file:
        del file["end"]
    assert judge.verdict(target, path)[0] == "refused"
