"""`budget:` of a section: features that cost too much run less often, equally on all ranks."""

import re
import time

import pytest
import torch
from debug_helpers import message_log
from distributed_workers import run_ranks

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.debug.features.api import TEConfigAPIMapper
from telens.debug.registry import Registry, api_method


class SlowLook(TEConfigAPIMapper):
    """A feature that takes ten times as long as a step of this test, on one rank only."""

    @api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        return tensor_name == "output", iteration + 1

    @api_method
    def inspect_tensor(self, config, layer_name, *, tensor_name, tensor, iteration, **kwargs):
        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 1:
            time.sleep(0.05)


def config(budget, features: dict | None = None) -> dict:
    return {
        "slow": {
            "enabled": True,
            "budget": budget,
            "layers": {"layer_types": "all"},
            "transformer_engine": features
            or {"SlowLook": {"enabled": True, "tensors": ["output"]}},
        }
    }


def from_first_step(share: str) -> dict:
    return {"share": share, "full_steps": 0}


def train(folder, steps: int = 30, feature: str = "SlowLook") -> None:
    torch.manual_seed(1)
    layer = te.Linear(32, 32, name="fc1")
    watched = {feature: {"enabled": True, "tensors": ["output"]}}
    with debug.session(config(from_first_step("10%"), watched), log_dir=folder):
        for _ in range(steps):
            layer(torch.ones(16, 32)).sum().backward()
            debug.step()


def test_over_budget_section_is_thinned_and_reported(tmp_path, register):
    register(SlowLook)
    train(tmp_path)
    events = telens.open_run(tmp_path).events
    texts = list(events[events["kind"] == "budget"]["text"])
    assert texts[0].startswith("budget of section 'slow': ")
    assert " run in 1 of " in texts[0]
    assert texts[0].endswith(" of their iterations (before: all)")
    assert texts[0] in message_log(tmp_path)


class OddLook(TEConfigAPIMapper):
    """A feature with its own schedule, the odd iterations, that takes half as long as a step."""

    seen = []  # noqa: RUF012

    @api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        return tensor_name == "output" and iteration % 2 == 1, iteration + 1

    @api_method
    def inspect_tensor(self, config, layer_name, *, tensor_name, tensor, iteration, **kwargs):
        self.seen.append(iteration)
        time.sleep(STEP / 2)


STEP = 0.008  # seconds
CHANGE = re.compile(
    r"budget of section 'slow': its (?:estimated )?overhead was \S+% of the time of \d+ steps on "
    r"this rank \(budget 20%\), so its features run in (all|1 of \d+) of their iterations "
    r"\(before: (all|1 of \d+)\)"
)


def test_a_class_that_is_on_in_odd_iterations_runs_in_some_of_them(tmp_path, register):
    register(OddLook)
    OddLook.seen.clear()
    steps = 80
    layer = te.Linear(32, 32, name="fc1")
    features = {"OddLook": {"enabled": True, "tensors": ["output"]}}
    with debug.session(config(from_first_step("20%"), features), log_dir=tmp_path):
        for _ in range(steps):
            layer(torch.ones(16, 32)).sum().backward()
            time.sleep(STEP)
            debug.step()
    events = telens.open_run(tmp_path).events
    changes = events[events["kind"] == "budget"]
    messages = [CHANGE.fullmatch(text).groups() for text in changes["text"]]
    assert [before for _, before in messages] == ["all", *(after for after, _ in messages[:-1])]
    first = changes["iteration"].min()
    later = [iteration for iteration in OddLook.seen if iteration > first]
    odd = range(first + 1 + first % 2, steps, 2)
    assert 0 < len(later) < len(odd)
    assert set(OddLook.seen) <= set(range(1, steps, 2))


def test_a_short_run_is_recorded_in_full(tmp_path):
    features = {"LogTensorStats": {"enabled": True, "tensors": ["output"], "stats": ["max"]}}
    layer = te.Linear(32, 32, name="fc1")
    with debug.session(config("0.001%", features), log_dir=tmp_path):
        for _ in range(30):
            layer(torch.ones(16, 32)).sum().backward()
            debug.step()
    recorded = telens.open_run(tmp_path).records()
    assert sorted(recorded["iteration"].unique()) == list(range(30))


def on_ranks(rank: int, folder: str) -> None:
    Registry.register_feature(namespace="transformer_engine")(SlowLook)
    train(folder)


def test_all_ranks_follow_the_one_that_it_costs_most(tmp_path):
    run_ranks(on_ranks, str(tmp_path))
    events = telens.open_run(tmp_path).events
    changes = events[events["kind"] == "budget"]
    by_rank = [
        [
            (int(iteration), text.split(" run ")[1])
            for each, iteration, text in zip(
                changes["rank"], changes["iteration"], changes["text"], strict=True
            )
            if each == rank
        ]
        for rank in range(2)
    ]
    assert by_rank[0]
    assert by_rank[0] == by_rank[1]


@pytest.mark.parametrize(
    ("budget", "features", "message"),
    [
        (3, None, "'budget' must be a part of the step time such as 3%"),
        ("120%", None, "above 0% and below 100%"),
        ({"full_steps": 3}, None, "'budget' has no 'share'; add for example 'share: 3%'"),
        ({"share": "3%", "full_step": 3}, None, "unknown key 'full_step' of 'budget' (did you"),
        ({"share": "3%", "full_steps": -1}, None, "'full_steps' must be a number of steps, 0"),
        ({"share": "3%", "full_steps": True}, None, "'full_steps' must be a number of steps, 0"),
        ({"share": "3%", "full_seconds": 0}, None, "'full_seconds' must be a number of seconds"),
        (
            "3%",
            {"FakeQuant": {"enabled": True, "gemms": "fprop", "tensors": "weight",
                           "quant_format": "FP8E4M3"}},
            "FakeQuant changes the computation",
        ),
        (
            "3%",
            {"DisableFP8Layer": {"enabled": True}},
            "DisableFP8Layer may change results",
        ),
    ],
)  # fmt: skip
def test_a_wrong_budget_is_an_error_at_the_beginning(tmp_path, budget, features, message):
    with pytest.raises(telens.ConfigError) as error:
        debug.initialize(config(budget, features), log_dir=tmp_path)
    assert message in str(error.value)
