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
    assert "--tensor weight --by rank" in said


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
