"""A small fixed part of the campaign of damaged dumps and saved states: see dump_campaign.py."""

import pytest
from dump_campaign import BAD, DumpCases, Progress, StateCases, campaign

CASES = 60


@pytest.mark.parametrize("name", ["dumps", "states"])
def test_no_damaged_file_crashes_the_reader_or_is_taken_in_silence(name, tmp_path):
    cases = DumpCases(tmp_path) if name == "dumps" else StateCases()
    progress = Progress(None, name)
    assert campaign(name, cases, CASES, seed=1, progress=progress) == 0, progress.bad
    assert progress.counts["refused"] > CASES / 4


def test_a_campaign_that_crashed_continues_and_counts_the_crash(tmp_path):
    path = tmp_path / "progress.json"
    first = Progress(path, "dumps")
    first.count(0, "refused")
    first.save(running=1)  # and ends here
    again = Progress(path, "dumps")
    assert again.next == 2
    assert again.counts == {"refused": 1, "crash": 1}
    assert again.bad == [[1, "crash"]]
    assert "crash" in BAD
