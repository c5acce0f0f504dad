"""telens diagnose on attention: exploding logits, collapsing entropy, and healthy runs."""

import json
import math
import random

import pytest

STEPS = 40
CORES = ["layers.0.core_attention", "layers.1.core_attention"]


class Attention:
    """Statistics of the scores in a healthy training; tests change them from a step on."""

    tensor = "scores"

    def __init__(self, seed=1):
        noise = random.Random(seed)
        self.values = {
            (step, layer): {
                "max": 6 * (1 + 0.01 * step) * (1 + 0.05 * noise.gauss(0, 1)),
                "attention_entropy%": 80 * (1 + 0.02 * noise.gauss(0, 1)),
                "one_key%": 1.0,
                "first_key%": 0.5,
                "numel": 1000,
                "nonfinite": 0,
            }
            for step in range(STEPS)
            for layer in CORES
        }

    def change(self, layer, first, **statistics):
        """Replaces statistics from step `first` on: by a value, or by function(old value, steps
        since).
        """
        for step in range(first, STEPS):
            values = self.values[step, layer]
            for name, made in statistics.items():
                key = name.replace("_percent", "%")
                values[key] = made(values[key], step - first) if callable(made) else made

    def write(self, lines, log_dir):
        for (step, layer), values in self.values.items():
            for statistic, value in values.items():
                lines.record(step, layer, self.tensor, statistic, value)
        return lines.write(log_dir)


@pytest.fixture
def findings(telens, lines, tmp_path):
    def diagnose(attention):
        result = telens("diagnose", attention.write(lines, tmp_path), "--format", "json")
        assert result.returncode in (0, 1), result.stderr
        found = json.loads(result.stdout)["findings"]
        return [(f["cause"], f["layer"], f["tensor"], f["first_iteration"]) for f in found]

    return diagnose


@pytest.mark.parametrize("seed", range(6))
def test_healthy_attention_gives_no_findings(findings, seed):
    assert findings(Attention(seed)) == []


def test_logits_that_jump_are_found_where_and_when(findings):
    attention = Attention()
    attention.change(CORES[1], 17, max=lambda value, _: value * 20)
    assert findings(attention) == [("attention_logits", CORES[1], "scores", 17)]


def test_exponentially_growing_logits_are_found(findings):
    attention = Attention()
    attention.change(CORES[0], 15, max=lambda value, since: value * 1.25 ** min(since + 1, 16))
    (cause, layer, _, first), *others = findings(attention)
    assert (cause, layer) == ("attention_logits", CORES[0])
    assert abs(first - 15) <= 2
    assert not others


def test_logits_that_grow_as_attention_learns_are_none(findings):
    attention = Attention()
    for layer in CORES:  # from 6 to 20 over the run
        attention.change(layer, 0, max=lambda value, since: value * math.exp(0.02 * since))
    assert findings(attention) == []


def test_logits_that_jump_and_stay_small_are_none(findings):
    attention = Attention()
    attention.change(CORES[0], 20, max=lambda value, _: value * 3)
    assert findings(attention) == []


def test_a_collapse_is_found_where_and_when(findings):
    attention = Attention()
    attention.change(
        CORES[1], 21, attention_entropy_percent=4.0, one_key_percent=95.0, first_key_percent=2.0
    )
    assert findings(attention) == [("attention_collapse", CORES[1], "scores", 21)]


def test_attention_sink_is_not_a_collapse(findings):
    attention = Attention()
    attention.change(
        CORES[1], 21, attention_entropy_percent=4.0, one_key_percent=95.0, first_key_percent=90.0
    )
    assert findings(attention) == []


def test_slowly_falling_entropy_is_not_a_collapse(findings):
    attention = Attention()
    attention.change(
        CORES[0],
        5,
        attention_entropy_percent=lambda value, since: value * math.exp(-0.08 * since),
        one_key_percent=lambda _, since: min(95.0, 3.0 * since),
    )
    assert findings(attention) == []


def test_exploding_logits_come_before_the_collapse_that_follows(findings):
    attention = Attention()
    attention.change(
        CORES[0],
        18,
        max=lambda value, _: value * 50,
        attention_entropy_percent=2.0,
        one_key_percent=97.0,
        first_key_percent=3.0,
    )
    (cause, layer, _, first), *_ = findings(attention)
    assert (cause, layer, first) == ("attention_logits", CORES[0], 18)


def test_statistic_of_other_tensor_is_ignored(findings):
    attention = Attention()
    attention.tensor = "query"
    attention.change(CORES[1], 17, max=lambda value, _: value * 20)
    assert findings(attention) == []


@pytest.mark.parametrize("skipped", [True, False])
def test_infinite_gradients_of_skipped_step_are_ignored(findings, lines, skipped):
    for step in range(STEPS):
        moves = 0.01 * (step - 1 if skipped and step == 10 else step)
        lines.record(step, "layers.0.proj", "weight", "l2_norm", 10 + moves)
        overflows = 3 if step == 9 else 0
        lines.record(step, CORES[0], "query_gradient", "nonfinite", overflows)
    wanted = [] if skipped else [("nonfinite", CORES[0], "query_gradient", 9)]
    assert findings(Attention()) == wanted


def test_logits_exploding_after_tiny_start_are_found(findings):
    attention = Attention()
    for layer in CORES:  # untrained, then from 0.1 to 0.8
        attention.change(layer, 0, max=lambda _, since: 0.1 if since < 6 else 0.8)
    attention.change(CORES[0], 26, max=50.0)
    assert findings(attention) == [("attention_logits", CORES[0], "scores", 26)]
