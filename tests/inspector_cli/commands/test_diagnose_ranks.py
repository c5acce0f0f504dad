"""telens diagnose on the records of features that compare two ranks."""

import csv
import json

import pytest
from conftest import Lines

STEPS = 12
GRADIENT = ("wgrad", "gradient_differs")
WEIGHT = ("weight", "weight_differs")
SCALE = ("weight", "scale_differs")
INPUT = ("activation", "replica_differs")
TARGET = ("gradient", "replica_differs")


@pytest.fixture
def diagnose(telens, tmp_path):
    """Diagnoses two ranks with these comparisons; the second rank differs from these iterations
    on.
    """

    def run(compared: dict, *arguments, warm_up: int | None = None):
        for rank in range(2):
            lines = Lines()
            for step in range(STEPS):
                for (tensor, statistic), first in compared.items():
                    differs = rank == 1 and first is not None and step >= first
                    lines.record(step, "layers.1.fc1", tensor, statistic, int(differs))
            if warm_up is not None:
                lines.warm_up(warm_up, "layers.1.fc1")
            lines.write(tmp_path, rank)
        return telens("diagnose", tmp_path, *arguments)

    return run


def causes(result) -> list[tuple]:
    """Returns the cause of each finding, with the causes of its consequences."""
    return [
        (each["cause"], [under["cause"] for under in each["consequences"]])
        for each in json.loads(result.stdout)["findings"]
    ]


def test_diverging_weights_follow_unreduced_gradient(diagnose):
    result = diagnose({GRADIENT: 4, WEIGHT: 5, SCALE: 5}, "--format", "json")
    assert causes(result) == [("unreduced_gradient", ["rank_mismatch", "rank_scales"])]


def test_gradient_precedes_weight_in_same_iteration(diagnose):
    result = diagnose({GRADIENT: 4, WEIGHT: 4}, "--format", "json")
    assert causes(result) == [("unreduced_gradient", ["rank_mismatch"])]


def test_either_of_two_ranks_may_deviate(diagnose):
    said = " ".join(diagnose({WEIGHT: 3}).stdout.split())
    assert "with two ranks, either may be the wrong one" in said
    assert "--tensor weight --stat weight_differs l2_norm --by rank" in said


def test_weights_that_parted_long_before_do_not(diagnose):
    result = diagnose({GRADIENT: 9, WEIGHT: 3}, "--format", "json")
    assert causes(result) == [("rank_mismatch", []), ("unreduced_gradient", [])]


def test_scales_follow_differing_weights(diagnose):
    result = diagnose({WEIGHT: 3, SCALE: 3}, "--format", "json")
    assert causes(result) == [("rank_mismatch", ["rank_scales"])]


@pytest.mark.parametrize(("compared", "is_on"), [(GRADIENT, True), (WEIGHT, False)])
def test_a_check_that_saw_no_collective_was_on(diagnose, compared, is_on):
    told = diagnose({compared: None}, "--missing").stdout
    assert ("skipped wrong_collective: " not in told) == is_on


def test_uncompared_inputs_are_not_called_equal(diagnose):
    assert "skipped unlike_inputs: " in diagnose({WEIGHT: None}, "--missing").stdout


def test_ended_comparisons_are_reported(telens, tmp_path):
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
    assert (
        "UTC from iteration 4 on, ranks 0, 1 were not compared with other ranks, so differences "
        f"between ranks are not detected: {late} no problems found"
    ) in said
    (note,) = json.loads(telens("diagnose", tmp_path, "--format", "json").stdout)["recording"]
    assert note.endswith(late)


def test_ranks_that_were_compared_to_the_end_need_no_note(diagnose):
    assert diagnose({WEIGHT: None}).stdout.splitlines()[1].startswith("no problems found")


# ---- other batches, other targets


@pytest.mark.parametrize(
    ("compared", "found"),
    [
        # The weights are compared after the optimizer's step.
        (
            {GRADIENT: 4, WEIGHT: 4, INPUT: 4},
            [("unlike_inputs", ["unreduced_gradient", "rank_mismatch"])],
        ),
        ({WEIGHT: 5, INPUT: 4}, [("unlike_inputs", ["rank_mismatch"])]),
        # If the weights differed before, they explain the different activations.
        ({WEIGHT: 3, INPUT: 4}, [("rank_mismatch", [])]),
        ({GRADIENT: 4, INPUT: None}, [("unreduced_gradient", [])]),
        ({INPUT: None, TARGET: 4, GRADIENT: 4}, [("unlike_inputs", ["unreduced_gradient"])]),
    ],
)
def test_differing_inputs_are_the_origin(diagnose, compared, found):
    assert causes(diagnose(compared, "--format", "json")) == found


def test_ranks_are_compared_in_warm_up_too(diagnose):
    """The scale is still 1, so it changes no bits and cannot explain the different gradients."""
    compared = {GRADIENT: 0, SCALE: 1, INPUT: 0}
    result = diagnose(compared, "--format", "json", warm_up=0)
    assert causes(result) == [("unlike_inputs", ["unreduced_gradient", "rank_scales"])]
    assert json.loads(result.stdout)["findings"][0]["first_iteration"] == 0


@pytest.mark.parametrize("inputs", [True, False])
def test_targets_are_blamed_only_with_compared_inputs(diagnose, inputs):
    compared = {TARGET: 4, **({INPUT: None} if inputs else {})}
    (finding,) = json.loads(diagnose(compared, "--format", "json").stdout)["findings"]
    alike = "all compared inputs agree: the targets, the loss"
    unknown = "the batches, targets or losses differ; inputs were not compared"
    assert (alike in finding["summary"]) == inputs
    assert (unknown in finding["summary"]) == (not inputs)


@pytest.fixture
def of_layers(telens, tmp_path):
    """Diagnoses two ranks; these layers' inputs and weights differ on the second from step 4 on."""

    def run(inputs, weights=()):
        for rank in range(2):
            lines = Lines()
            for step in range(STEPS):
                for layer in ("layers.1.fc1", "layers.2.fc1"):
                    late = rank == 1 and step >= 4
                    lines.record(step, layer, *INPUT, int(late and layer in inputs))
                    lines.record(step, layer, *WEIGHT, int(late and layer in weights))
            lines.write(tmp_path, rank)
        return json.loads(telens("diagnose", tmp_path, "--format", "json").stdout)["findings"]

    return run


def test_first_and_later_inputs_are_distinguished(of_layers):
    (first,) = of_layers(["layers.1.fc1", "layers.2.fc1"])
    assert (first["layer"], first["tensor"], first["rank"]) == ("layers.1.fc1", "activation", 1)
    assert first["first_iteration"] == 4
    assert "the first tensor of a step that must be the same" in first["summary"]
    assert "the same batches" in first["next_step"]


def test_input_after_equal_inputs_is_not_the_batch(of_layers):
    (later,) = of_layers(["layers.2.fc1"])
    assert later["cause"] == "unlike_inputs"
    assert "inputs of the preceding layers agree" in later["summary"]


def test_input_after_differing_weight_follows_it(of_layers):
    (origin,) = of_layers(["layers.2.fc1"], weights=["layers.1.fc1"])
    assert origin["cause"] == "rank_mismatch"


# ---- recipes


def wishes(lines, layer, gemm, recipe, ran="E4M3 under tensor scaling", at=0, state=0):
    entries = {
        "activation requested": "E4M3 under tensor scaling",
        "activation ran": ran,
        "activation cause": "the recipe wants it so",
        "weight requested": "E4M3 under tensor scaling",
        "weight ran": "E4M3 under tensor scaling",
        "weight cause": "the recipe wants it so",
    }
    if recipe:
        entries["recipe"] = recipe
    lines.ledger(at, layer, gemm, state, entries)


@pytest.fixture
def under(telens, tmp_path_factory):
    """Runs a command on ranks with these recipes. None of them has ended its first step."""

    def run(recipes, *arguments, command="diagnose", **options):
        log_dir = tmp_path_factory.mktemp("under")
        for rank, recipe in enumerate(recipes):
            lines = Lines()
            for layer in ("layers.1.fc1", "layers.2.fc1"):
                wishes(lines, layer, "fprop", recipe, **options)
            lines.write(log_dir, rank, len(recipes))
        return telens(command, log_dir, *arguments)

    return run


DELAYED, CURRENT = "fp8_delayed_scaling", "fp8_current_scaling"


def test_ranks_under_unlike_recipes_are_named_with_both(under):
    result = under([DELAYED, CURRENT, DELAYED], "--format", "json")
    (finding,) = json.loads(result.stdout)["findings"]
    assert (finding["cause"], finding["rank"]) == ("unlike_recipes", 1)
    assert (finding["layer"], finding["gemm"]) == ("layers.1.fc1", "fprop")
    assert (finding["first_iteration"], finding["last_iteration"]) == (0, 0)
    assert finding["summary"] == (
        f"rank 1 requests {CURRENT}, but rank 0 requests {DELAYED}; also affects 1 other layer"
    )
    assert "--by rank" in finding["next_step"]
    text = " ".join(under([DELAYED, "none"]).stdout.split())
    assert "rank 1 requests no recipe" in text
    assert "nothing to diagnose" not in text


def test_ledger_without_statistics_is_checked(under):
    text = " ".join(under([DELAYED, DELAYED]).stdout.split())
    assert "UTC no problems found in iterations 0-0 (5 of" in text


@pytest.mark.parametrize(
    ("recipes", "summary", "others"),
    [
        (
            [DELAYED, CURRENT, "none"],
            f"rank 1 requests {CURRENT}, but rank 0 requests {DELAYED}",
            {"rank 2 requests no recipe"},
        ),
        (
            ["none", CURRENT, DELAYED, CURRENT],
            f"rank 0 requests no recipe, but rank 1 requests {CURRENT}",
            {f"rank 2 requests {DELAYED}"},
        ),
    ],
)
def test_three_recipes_are_summarized_as_two(under, recipes, summary, others):
    (finding,) = json.loads(under(recipes, "--format", "json").stdout)["findings"]
    assert finding["summary"] == f"{summary}; also affects 1 other layer"
    whats = {each["what"] for each in finding["evidence"]}
    assert len(whats) == 3
    assert whats > others


@pytest.mark.parametrize(
    ("reached", "confidence"),
    # Before the switch; in its iteration, which may still be written; after it.
    [(4, None), (5, 0.4), (8, 0.9)],
)
def test_ranks_are_compared_in_common_iterations(telens, tmp_path, reached, confidence):
    for rank, last in enumerate([8, reached]):
        lines = Lines()
        wishes(lines, "fc1", "fprop", DELAYED)
        if rank == 0:
            wishes(lines, "fc1", "fprop", CURRENT, at=5, state=1)
        for step in range(last + 1):
            lines.record(step, "fc1", "activation", "nonfinite", 0)
        lines.write(tmp_path, rank, 2)
    found = json.loads(telens("diagnose", tmp_path, "--format", "json").stdout)["findings"]
    assert [each["confidence"] for each in found] == ([confidence] if confidence else [])


def test_ranks_that_a_resume_left_out_are_not_compared(telens, tmp_path):
    for ranks, first, recipe in ((3, 0, DELAYED), (2, 4, CURRENT)):
        for rank in range(ranks):
            lines = Lines()
            wishes(lines, "fc1", "fprop", recipe, at=first)
            for step in range(first, first + 6):
                lines.record(step, "fc1", "activation", "nonfinite", 0)
            lines.write(tmp_path, rank, ranks)
    found = json.loads(telens("diagnose", tmp_path, "--format", "json").stdout)["findings"]
    assert found == []


def test_equal_or_unknown_recipes_are_ignored(under):
    assert json.loads(under([DELAYED] * 2, "--format", "json").stdout)["findings"] == []
    assert json.loads(under([DELAYED, ""], "--format", "json").stdout)["findings"] == []


def test_altered_request_is_not_another_recipe(telens, tmp_path):
    for rank, ran in enumerate(["E4M3 under tensor scaling", "BF16"]):
        lines = Lines()
        wishes(lines, "fc1", "fprop", DELAYED, ran)
        lines.write(tmp_path, rank)
    found = json.loads(telens("diagnose", tmp_path, "--format", "json").stdout)["findings"]
    assert "unlike_recipes" not in {each["cause"] for each in found}


def test_recipe_change_on_every_rank_is_ignored(telens, tmp_path):
    for rank in range(2):
        lines = Lines()
        wishes(lines, "fc1", "fprop", DELAYED)
        wishes(lines, "fc1", "fprop", CURRENT, at=5 + rank, state=1)
        lines.write(tmp_path, rank)
    assert json.loads(telens("diagnose", tmp_path, "--format", "json").stdout)["findings"] == []


def ledger(under, recipes, *arguments):
    rows = json.loads(under(recipes, *arguments, "--format", "json", command="ledger").stdout)
    return rows, sorted({(*row["rank"], row["recipe"]) for row in rows})


def test_ledger_json_lists_ranks_uniformly(under):
    rows, ranks = ledger(under, [DELAYED, CURRENT, DELAYED])
    assert ranks == [(0, 2, DELAYED), (1, CURRENT)]
    rows, ranks = ledger(under, [DELAYED] * 3)
    assert (len(rows), ranks) == (2 * 2, [(0, 1, 2, DELAYED)])
    rows, ranks = ledger(under, [DELAYED] * 2, "--by", "rank")
    assert (len(rows), ranks) == (2 * 2 * 2, [(0, DELAYED), (1, DELAYED)])
    told = under([DELAYED] * 10 + [CURRENT], "--format", "csv", "--sort", "rank", command="ledger")
    ranks = {row["rank"] for row in csv.DictReader(told.stdout.splitlines())}
    assert ranks == {"0, 1, 2, 3, 4, 5, 6, 7, 8, 9", "10"}


def test_ledger_table_lists_differing_ranks(under):
    told = under([DELAYED, CURRENT, DELAYED], command="ledger").stdout
    assert "0, 2" in told
    assert "rank" not in under([DELAYED] * 3, command="ledger").stdout.splitlines()[0]
    by_rank = under([DELAYED], "--by", "rank", command="ledger").stdout
    assert by_rank.splitlines()[0].split()[0] == "rank"


def test_ledger_shows_one_rank(under):
    recipes = [DELAYED, CURRENT]
    rows = json.loads(under(recipes, "--rank", 1, "--format", "json", command="ledger").stdout)
    assert {row["recipe"] for row in rows} == {CURRENT}
    refused = under(recipes, "--rank", 7, command="ledger")
    assert refused.returncode == 2
    assert "this run does not contain a file of rank 7" in refused.stderr
