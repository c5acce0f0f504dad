"""telens diff on scalars of two runs, such as losses, learning rates and gradient norms."""

import math
import random

import pytest
from conftest import Lines

STEPS = 20


def numbers(name, tmp_path, scalars, seed=1, rank=0, ranks=1):
    """A run of one layer and scalars; each value of `scalars` is a function of the iteration."""
    draw = random.Random(seed)
    size = math.exp(0.02 * draw.gauss(0, 1))
    lines = Lines()
    for step in range(STEPS):
        lines.record(step, "fc1", "weight", "l2_norm", 64 * size)
        lines.record(step, "fc1", "weight", "numel", 4096)
        for scalar, value in scalars.items():
            lines.scalar(step, scalar, value(step))
    return lines.write(tmp_path / name, rank, ranks)


def loss(step):
    return 4 * 0.98**step


@pytest.mark.parametrize("seed", [1, 2])
def test_all_scalars_of_equal_names_are_compared(diff, telens, tmp_path, seed):
    a = numbers("a", tmp_path, {"loss": loss, "grad_norm": lambda step: 1, "lr": lambda step: 1e-3})
    b = numbers("b", tmp_path, {"loss": loss, "grad_norm": lambda step: 100 if step > 4 else 1,
                                "lr": lambda step: 2e-3 if step > 9 else 1e-3}, seed)  # fmt: skip
    printed = diff(a, b)
    assert printed["compared"] == 4
    assert printed["other_seeds"] is (seed == 2)
    assert [
        (each["layer"], each["tensor"], each["rank"], each["quantity"], each["first_iteration"])
        for each in printed["divergences"]
    ] == [(None, None, None, "grad_norm", 5), (None, None, None, "lr", 10)]
    text = telens("diff", a, b).stdout
    assert text.startswith("The runs diverge in iteration 5: grad_norm is 1 in A and 100 in B")


@pytest.mark.parametrize(
    ("name", "of_a", "of_b"),
    [
        ("grad_norm", 1, 2),
        ("loss", 4, 4.2),
        ("lost_updates%", 0, 5),
    ],
)
def test_scalars_that_seeds_explain_do_not_diverge(diff, tmp_path, name, of_a, of_b):
    a = numbers("a", tmp_path, {name: lambda step: of_a})
    assert diff(a, numbers("b", tmp_path, {name: lambda step: of_b}, 2))["divergences"] == []
    (found,) = diff(a, numbers("c", tmp_path, {name: lambda step: 20 + 3 * of_b}, 2))["divergences"]
    assert found["quantity"] == name


def test_rounded_learning_rate_is_not_a_divergence(diff, tmp_path):
    a = numbers("a", tmp_path, {"adam.lr": lambda step: 1e-3})
    printed = diff(a, numbers("b", tmp_path, {"adam.lr": lambda step: 1e-3 * (1 + 2**-24)}))
    assert (printed["compared"], printed["divergences"]) == (2, [])
    (found,) = diff(a, numbers("c", tmp_path, {"adam.lr": lambda step: 1.01e-3}))["divergences"]
    assert found["quantity"] == "adam.lr"


def test_scalars_without_a_counterpart_are_listed(diff, telens, tmp_path):
    a = numbers("a", tmp_path, {"loss": loss, "accuracy": lambda step: 0.5})
    b = numbers("b", tmp_path, {"accuracy": lambda step: 0.5, "tokens": lambda step: step})
    printed = diff(a, b)
    assert printed["compared"] == 2
    missing = {"layer": None, "tensor": None, "gemm": None, "rank": None}
    assert printed["unmatched_in_a"] == [{**missing, "quantity": "loss"}]
    assert printed["unmatched_in_b"] == [{**missing, "quantity": "tokens"}]
    text = telens("diff", a, b).stdout
    assert "1 series of A have no counterpart and were not compared: loss\n" in text
    assert "1 series of B have no counterpart and were not compared: tokens\n" in text


def test_scalars_are_compared_rank_by_rank(diff, tmp_path):
    for rank in range(2):
        numbers("a", tmp_path, {"loss": loss}, rank=rank, ranks=2)
        numbers("b", tmp_path, {"loss": lambda step, rank=rank: (1 + rank) * loss(step)},
                rank=rank, ranks=2)  # fmt: skip
    printed = diff(tmp_path / "a", tmp_path / "b")
    assert [(each["quantity"], each["rank"]) for each in printed["divergences"]] == [("loss", 1)]
