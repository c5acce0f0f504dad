"""Statistics that classes in Python define, and feature classes that ask for statistics."""

import pathlib
import re

import pytest
import torch
from debug_helpers import logging_of, message_log, section, train
from distributed_workers import run_ranks

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.debug import Registry, TEConfigAPIMapper, api_method

PLUGIN = pathlib.Path(__file__).resolve().parents[2] / "samples/plugins/excess_kurtosis"


@pytest.fixture
def define():
    """Registers classes as statistics for the duration of a test."""
    owners = []

    def define_class(cls, name):
        Registry.register_statistic(name)(cls)
        owners.append(f"{cls.__module__}.{cls.__qualname__}")
        return cls

    yield define_class
    debug.end_debug()
    for owner in owners:
        Registry.forget(owner)


class Total:
    """Sum of all elements."""

    size = 1

    def add(self, tensor):
        return [tensor.sum().item()]

    def finish(self, sums):
        return sums[0]


class Spread:
    """Largest minus smallest element, whose words are not merged by addition."""

    size = 2

    def add(self, tensor):
        return torch.stack(tensor.aminmax())

    def merge(self, a, b):
        return [min(a[0], b[0]), max(a[1], b[1])]

    def finish(self, sums):
        return sums[1] - sums[0]


class Failing(Total):
    """Raises in ``add``."""

    def add(self, tensor):
        raise ArithmeticError("no total today")


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randn(64, 32, requires_grad=True)


def recorded(log_dir, statistic, **where) -> list[float]:
    records = telens.open_run(log_dir).records(**where)
    records = records[records["statistic"] == statistic]
    return records.sort_values("iteration")["value"].tolist()


def excess_kurtosis_of(tensor: torch.Tensor) -> float:
    distance = tensor.detach().double() - tensor.detach().double().mean()
    return (distance.pow(4).mean() / distance.square().mean().square()).item() - 3


# ---- defined by a class


def test_the_values_of_a_training_are_torchs_own(tmp_path, define, layer, x):
    define(Total, "total")
    define(Spread, "spread")
    config = logging_of(["activation", "gradient"], ["spread", "max", "total"])
    with debug.session(config, log_dir=tmp_path):
        out = train(layer, x)
    gradient = 2 * out.detach() / out.numel()
    for tensor, value in (("activation", x.detach()), ("gradient", gradient)):
        spread = (value.double().max() - value.double().min()).item()
        assert recorded(tmp_path, "spread", tensor=tensor) == pytest.approx([spread], rel=1e-6)
        total = recorded(tmp_path, "total", tensor=tensor)
        assert total == pytest.approx([value.double().sum().item()], abs=1e-3)
    # The counters are recorded with any statistic.
    assert recorded(tmp_path, "nan", tensor="activation") == [0]


def test_micro_batches_are_merged_and_a_weight_counts_once(tmp_path, define, layer, x):
    define(Spread, "spread")
    define(Total, "total")
    config = logging_of(["activation", "weight"], ["spread", "total"])
    with debug.session(config, log_dir=tmp_path):
        for part in (x, 3 * x):
            layer(part).sum().backward()
        debug.step()
    both = torch.cat([x, 3 * x]).detach().double()
    spread = (both.max() - both.min()).item()
    assert recorded(tmp_path, "spread", tensor="activation") == pytest.approx([spread], rel=1e-6)
    weight = layer.weight.detach().double()
    total = recorded(tmp_path, "total", tensor="weight")
    assert total == pytest.approx([weight.sum().item()], abs=1e-4)


def test_the_sample_plugin_logs_the_same_in_python_and_in_cpp(tmp_path, build_folder, layer, x):
    values = {}
    for name, folder in (("python", PLUGIN), ("cpp", build_folder / "plugins/excess_kurtosis")):
        with debug.session(
            PLUGIN / "excess_kurtosis.yaml", feature_dirs=folder, log_dir=tmp_path / name
        ):
            for _ in range(2):
                for part in (x**3, x.detach() + 2):
                    layer(part).square().mean().backward()
                debug.step()
        values[name] = recorded(tmp_path / name, "excess_kurtosis")
    assert values["python"] == pytest.approx(values["cpp"], rel=1e-12)
    assert len(values["cpp"]) == 4
    of_activations = recorded(tmp_path / "cpp", "excess_kurtosis", tensor="activation")
    whole = excess_kurtosis_of(torch.cat([x**3, x + 2]))
    assert of_activations == pytest.approx([whole, whole], rel=1e-6)


def test_constant_tensor_kurtosis_is_skipped(tmp_path, layer):
    with debug.session(PLUGIN / "excess_kurtosis.yaml", feature_dirs=PLUGIN, log_dir=tmp_path):
        train(layer, torch.ones(16, 32))
    (value,) = recorded(tmp_path, "excess_kurtosis", tensor="activation")
    assert value != value  # 0 / 0
    assert "is disabled" not in message_log(tmp_path)


def test_looking_at_a_defined_statistic_changes_no_bit(tmp_path, define):
    define(Spread, "spread")

    def trained(config) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(te.Linear(32, 32, name="fc1"), te.Linear(32, 32, name="fc2"))
        batch = torch.randn(16, 32)
        with debug.session(config, log_dir=tmp_path):
            out = train(model, batch, steps=2, fp8=True)
        return [out, *(parameter.grad for parameter in model.parameters())]

    tensors = ["activation", "weight", "gradient", "output", "wgrad", "dgrad"]
    plain, watched = trained(""), trained(logging_of(tensors, ["spread"]))
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_raising_statistic_is_disabled_with_a_warning(tmp_path, define, layer, x, capfd):
    define(Failing, "total")
    with debug.session(logging_of(["activation"], ["total", "max"]), log_dir=tmp_path):
        train(layer, x, steps=3)
    assert capfd.readouterr().err.count("no total today") == 1
    log = message_log(tmp_path)
    for word in ("'total'", "Failing", "'fc1'", "add of activation", "ArithmeticError"):
        assert word in log
    assert recorded(tmp_path, "total") == []
    assert len(recorded(tmp_path, "max")) == 3
    assert telens.open_run(tmp_path).events["kind"].tolist() == ["statistic_off"]


def test_too_many_sums_are_a_failure_that_says_how_many(tmp_path, define, layer, x, capfd):
    class TooMany(Total):
        """Returns two values, although size is 1."""

        def add(self, tensor):
            return [1.0, 2.0]

    define(TooMany, "total")
    with debug.session(logging_of(["activation"], ["total"]), log_dir=tmp_path):
        train(layer, x)
    assert "add returned 2 values, and size is 1" in capfd.readouterr().err


def test_ones_own_tensors_have_them_too(tmp_path, define):
    define(Spread, "spread")
    base = {"LogTensorStats": {"enabled": True, "tensors": ["logits"], "stats": ["max", "spread"]}}
    with debug.session(section(base, namespace=None), log_dir=tmp_path):
        values = debug.log_tensor_stats(
            "fc1", tensor_name="logits", tensor=torch.tensor([1.0, 4.0])
        )
    assert {name: value.item() for name, value in values.items()} == {"max": 4, "spread": 3}


def test_a_misspelt_name_is_an_error_with_the_nearest(define):
    define(Spread, "spread")
    with pytest.raises(telens.ConfigError, match=r"'spraed' \(did you mean 'spread'\?\)"):
        debug.initialize(logging_of(["activation"], ["spraed"]))


def test_plan_includes_registered_statistics(define):
    define(Spread, "spread")
    plan = debug.plan(logging_of(["activation"], ["spread"]), ["fc1"])
    assert plan.load["most_records"] == 7  # and the six counters
    with pytest.raises(telens.ConfigError, match="spread"):
        debug.plan(logging_of(["activation"], ["spred"]), ["fc1"])


def test_the_features_that_take_them_explain_them(define, tmp_path, capsys):
    define(Spread, "spread")
    with debug.session("", log_dir=tmp_path):
        debug.explain_features(["transformer_engine.LogTensorStats", "FakeQuant"])
    assert capsys.readouterr().out.count("spread: Largest minus smallest element, whose") == 1


def test_names_that_are_taken_are_refused_and_both_owners_named(define):
    define(Spread, "spread")
    with pytest.raises(telens.UsageError, match=r"'spread' of .*Total.*Spread has registered"):
        define(Total, "spread")
    with pytest.raises(telens.UsageError, match="telens has a statistic of that name"):
        define(Total, "l2_norm")
    define(Spread, "spread")  # the same class replaces itself


def test_rejects_class_that_is_not_a_statistic(define):
    class NoFinish:
        size = 1

        def add(self, tensor):
            return [0.0]

    class NoSize(Total):
        size = 0

    with pytest.raises(telens.UsageError, match=r"NoFinish.*'finish'"):
        define(NoFinish, "total")
    with pytest.raises(telens.UsageError, match=r"NoSize.*'size'.*0"):
        define(NoSize, "total")


# ---- statistics that a feature class requests


class Asks(TEConfigAPIMapper):
    """Requests the statistics that its configuration names."""

    answers: list[str | None] = []  # noqa: RUF012  # the class is built anew for no test

    @api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        return True

    @api_method
    def inspect_tensor(self, config, layer_name, *, tensor_name, statistics):
        self.answers.append(statistics.want(*config["ask"]))


def asking(*names: str, tensors=("activation",)) -> dict:
    return section({"Asks": {"enabled": True, "tensors": list(tensors), "ask": list(names)}})


@pytest.fixture
def asks(register):
    Asks.answers = []
    return register(Asks)


def test_feature_class_requests_engine_statistics(tmp_path, asks, layer, x):
    with debug.session(asking("l2_norm", "underflows%", "scale_inv_max"), log_dir=tmp_path):
        train(layer, x, steps=2, fp8=True)
    assert asks.answers == [None, None]
    norm = x.detach().double().norm().item()
    assert recorded(tmp_path, "l2_norm") == pytest.approx([norm, norm], rel=1e-6)
    assert len(recorded(tmp_path, "underflows%")) == 2


def test_want_reports_meaningless_statistics(tmp_path, asks, layer, x):
    with debug.session(asking("max", "underflows%"), log_dir=tmp_path):
        train(layer, x)
    assert asks.answers == ["underflows%: it runs unquantized here"]
    assert recorded(tmp_path, "max") == [x.max().item()]


def test_unknown_statistic_request_disables_the_class(tmp_path, asks, layer, x):
    with debug.session(asking("l2_nrm"), log_dir=tmp_path):
        train(layer, x, steps=2)
    assert "did you mean 'l2_norm'" in message_log(tmp_path)
    assert telens.open_run(tmp_path).events["kind"].tolist() == ["feature_off"]


def test_asking_after_the_call_is_an_error(tmp_path, register, layer, x):
    kept = []

    class Keeps(Asks):
        @api_method
        def inspect_tensor(self, config, layer_name, *, statistics):
            kept.append(statistics)

    register(Keeps)
    config = section({"Keeps": {"enabled": True, "tensors": ["activation"]}})
    with debug.session(config, log_dir=tmp_path):
        train(layer, x)
        with pytest.raises(telens.UsageError, match="the call of inspect_tensor is over"):
            kept[0].want("max")


def test_keywords_of_a_class_that_takes_all_are_the_contracts_own(tmp_path, register, layer, x):
    seen = []

    class TakesAll(Asks):
        @api_method
        def inspect_tensor(self, config, layer_name, **kwargs):
            seen.append(set(kwargs))

    register(TakesAll)
    config = section({"TakesAll": {"enabled": True, "tensors": ["activation"]}})
    with debug.session(config, log_dir=tmp_path):
        train(layer, x)
    assert seen == [
        {
            "tensor_name", "tensor", "iteration", "tp_group", "tp_size", "quantizer",
            "rowwise_quantized_tensor", "columnwise_quantized_tensor",
        }
    ]  # fmt: skip


def test_sample_feature_uses_plugin_statistic(tmp_path, layer, x):
    config = section(
        {"LogTails": {"enabled": True, "tensors": ["activation"], "min_elements": 1000}},
        namespace="telens",
    )
    with debug.session(config, feature_dirs=PLUGIN, log_dir=tmp_path):
        train(layer, x)
        train(layer, x[:16])
    whole = recorded(tmp_path, "excess_kurtosis")
    assert whole == pytest.approx([excess_kurtosis_of(x)], rel=1e-6)
    assert recorded(tmp_path, "cur_amax") == [x.abs().max().item()]


def test_the_documentation_shows_the_samples_own_lines():
    page = (PLUGIN.parents[2] / "docs/plugins.md").read_text().split("## Statistics of your own")[1]
    for language, file in (("python", "excess_kurtosis.py"), ("cpp", "excess_kurtosis.cpp")):
        (shown,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
        lines = (PLUGIN / file).read_text().splitlines()
        assert [line for line in shown.splitlines() if line.strip(" .") and line not in lines] == []
    assert "stats: [std, excess_kurtosis]" in page
    assert "stats: [std, excess_kurtosis]" in (PLUGIN / "excess_kurtosis.yaml").read_text()


# ---- over ranks


def of_two_ranks(rank: int, folder: str) -> None:
    Registry.register_statistic("spread")(Spread)
    Registry.register_statistic("total")(Total)
    Registry.register_feature(namespace="transformer_engine")(Asks)
    logging = {"enabled": True, "tensors": ["activation"], "stats": ["spread", "max"]}
    asking = {"enabled": True, "tensors": ["activation"], "ask": ["total", "min"]}
    config = section({"LogTensorStats": logging, "Asks": asking})
    with debug.session(config, log_dir=folder):
        layer = te.Linear(16, 16, name="fc1")
        train(layer, torch.full((16, 16), float(10 * rank)))
        if rank == 0:  # the other rank comes to the step with nothing
            layer(torch.ones(16, 16))
        debug.step()


def test_ranks_share_their_sums(tmp_path):
    run_ranks(of_two_ranks, str(tmp_path))
    values = {
        statistic: recorded(tmp_path, statistic, iterations=(0, 0))
        for statistic in ("spread", "max", "total", "min")
    }
    assert {name: set(found) for name, found in values.items()} == {
        "spread": {10}, "max": {10}, "total": {2560}, "min": {0},
    }  # fmt: skip
    assert recorded(tmp_path, "spread", iterations=(1, 1)) == [0]


def failing_on_one_rank(rank: int, folder: str) -> None:
    Registry.register_statistic("total")(Failing if rank == 1 else Total)
    with debug.session(logging_of(["activation"], ["total", "max"]), log_dir=folder):
        layer = te.Linear(16, 16, name="fc1")
        for _ in range(2):
            train(layer, torch.full((16, 16), float(rank)))


def test_failure_on_one_rank_drops_the_value_everywhere(tmp_path):
    run_ranks(failing_on_one_rank, str(tmp_path))
    assert recorded(tmp_path, "total") == []
    assert set(recorded(tmp_path, "max")) == {1}
