"""telens diagnose, on what features that compare ranks have recorded of two of them."""

import json

import pytest
from conftest import Lines

STEPS = 12
GRADIENT = ("wgrad", "gradient_differs")
WEIGHT = ("weight", "weight_differs")
SCALE = ("weight", "scale_differs")


@pytest.fixture
def diagnose(telens, tmp_path):
    """Of two ranks that compared these; the second one differs from these iterations on."""

    def run(compared: dict, *arguments):
        for rank in range(2):
            lines = Lines()
            for step in range(STEPS):
                for (tensor, statistic), first in compared.items():
                    differs = rank == 1 and first is not None and step >= first
                    lines.record(step, "layers.1.fc1", tensor, statistic, int(differs))
            lines.write(tmp_path, rank)
        return telens("diagnose", tmp_path, *arguments)

    return run


def causes(result) -> list[tuple]:
    """Each finding, and what lies under it."""
    return [
        (each["cause"], [under["cause"] for under in each["consequences"]])
        for each in json.loads(result.stdout)["findings"]
    ]


def test_weights_that_part_by_an_unreduced_gradient_lie_under_it(diagnose):
    result = diagnose({GRADIENT: 4, WEIGHT: 5, SCALE: 5}, "--format", "json")
    assert causes(result) == [("unreduced_gradient", ["rank_mismatch", "rank_scales"])]


def test_the_gradient_comes_first_where_both_show_in_one_iteration(diagnose):
    result = diagnose({GRADIENT: 4, WEIGHT: 4}, "--format", "json")
    assert causes(result) == [("unreduced_gradient", ["rank_mismatch"])]


def test_of_two_ranks_either_may_be_the_odd_one(diagnose):
    said = " ".join(diagnose({WEIGHT: 3}).stdout.split())
    assert "of two ranks either may be the odd one" in said
    assert "--tensor weight --stat weight_differs l2_norm --by rank" in said


def test_weights_that_parted_long_before_do_not(diagnose):
    result = diagnose({GRADIENT: 9, WEIGHT: 3}, "--format", "json")
    assert causes(result) == [("rank_mismatch", []), ("unreduced_gradient", [])]


def test_scales_of_weights_that_differ_lie_under_them(diagnose):
    result = diagnose({WEIGHT: 3, SCALE: 3}, "--format", "json")
    assert causes(result) == [("rank_mismatch", ["rank_scales"])]


@pytest.mark.parametrize(("compared", "is_on"), [(GRADIENT, True), (WEIGHT, False)])
def test_a_check_that_saw_no_collective_was_on(diagnose, compared, is_on):
    told = " ".join(diagnose({compared: None}).stdout.split())
    assert ("not recorded: wrong_collective" not in told) == is_on


def test_comparisons_that_ended_are_told(telens, tmp_path):
    gave_up = "; this rank goes on recording and is compared with no other any more"
    late = "rank 1 did not come to the comparison of ranks in iteration 4 (waited for 5.0 s: gone)"
    alone = "a rank that has given up waiting did not come to the comparison of ranks"
    for rank in range(3):
        lines = Lines()
        for step in range(STEPS):
            lines.record(step, "layers.1.fc1", *WEIGHT, 0)
        if rank < 2:
            lines.event(4 + rank, "ranks_not_compared", (alone if rank else late) + gave_up, "-")
        lines.write(tmp_path, rank)
    said = " ".join(telens("diagnose", tmp_path).stdout.split())
    assert said.startswith(
        "from iteration 4 on ranks 0, 1 were compared with no other, so what differs between ranks "
        f"from there on is not seen: {late} no finding"
    )
    (note,) = json.loads(telens("diagnose", tmp_path, "--format", "json").stdout)["recording"]
    assert note.endswith(late)


def test_ranks_that_were_compared_to_the_end_need_no_note(diagnose):
    assert diagnose({WEIGHT: None}).stdout.startswith("no finding")
