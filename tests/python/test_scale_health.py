"""ScaleHealth in real layers, against NumPy and ml_dtypes, which share no code with the library."""

import json
import subprocess

import ml_dtypes
import numpy as np
import pytest
import torch
from debug_helpers import Backward, message_log, section, train
from distributed_workers import run_ranks

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
)

ALL = ["scale_staleness", "scale_headroom", "stale_saturated%", "scale_jump", "scale_age"]
FORMATS = {
    "gradient": ml_dtypes.float8_e5m2
}  # HYBRID has E5M2 for gradients and E4M3 for the others
LARGEST = {ml_dtypes.float8_e4m3fn: 448.0, ml_dtypes.float8_e5m2: 57344.0}
ONE = np.float32(1)


def watching(tensors=("activation", "weight", "gradient"), **keys) -> dict:
    return section(
        {"ScaleHealth": {"enabled": True, "tensors": list(tensors), **keys}}, namespace="telens"
    )


def recorded(log_dir) -> dict[str, dict[tuple[int, str], float]]:
    """The values by statistic, then by iteration and tensor."""
    values: dict = {}
    for row in telens.open_run(log_dir).records().itertuples():
        values.setdefault(row.statistic, {})[row.iteration, row.tensor] = row.value
    return values


class History:
    """Delayed scaling of one tensor in NumPy, as the contract defines its statistics."""

    def __init__(self, tensor, length, margin):
        self.dtype = FORMATS.get(tensor, ml_dtypes.float8_e4m3fn)
        self.length, self.margin = length, margin
        self.scale, self.amaxes = ONE, []

    def update(self, x):
        self.amaxes = [*self.amaxes, np.max(np.abs(x))][-self.length :]
        amax = np.max(self.amaxes)
        if np.isfinite(amax) and amax > 0:
            self.scale = np.float32(LARGEST[self.dtype]) / amax / np.float32(2**self.margin)

    def statistics(self, x, scale_before):
        amax = float(np.max(np.abs(x)))
        room = LARGEST[self.dtype] * float(ONE / self.scale)
        clipped = ~np.isfinite((x * self.scale).astype(self.dtype).astype(np.float32))
        values = {
            "stale_saturated%": 100 * np.count_nonzero(clipped & np.isfinite(x)) / x.size,
            "scale_age": 0.0,
        }
        if amax != 0:
            values["scale_headroom"] = np.log2(room / amax) if amax != np.inf else -np.inf
            values["scale_staleness"] = self.margin - values["scale_headroom"]
        if scale_before is not None:
            values["scale_jump"] = np.log2(float(self.scale) / float(scale_before))
        return values


def inputs(rows, columns, seed=0):
    """Tensors that grow and shrink, of zeros, with NaN and with Inf."""
    generator = np.random.default_rng(seed)
    for factor in (1.0, 30.0, 2000.0, 0.001, 0.0, 5.0, np.nan, 1.0, 0.5, np.inf, 100.0, 100.0):
        x = generator.standard_normal((rows, columns)).astype(np.float32)
        if np.isfinite(factor):
            x *= np.float32(factor)
        else:
            x[3, 5] = factor
        yield x


def request_delayed_scaling(**options) -> CustomRecipe:
    request = te.DelayedScalingRequest(**options)
    return CustomRecipe(qfactory=lambda role: request)


@pytest.mark.parametrize(
    ("make", "margin", "length"),
    [(DelayedScaling, 0, 3), (DelayedScaling, 2, 1), (request_delayed_scaling, 1, 2)],
)
def test_every_statistic_matches_numpy(tmp_path, make, margin, length):
    torch.manual_seed(1)
    layer = te.Linear(32, 48, params_dtype=torch.float32, name="fc")
    recipe = make(margin=margin, amax_history_len=length)
    weight = layer.weight.detach().numpy().copy()
    histories = {
        name: History(name, length, margin) for name in ("activation", "weight", "gradient")
    }
    scales: dict = dict.fromkeys(histories)
    expected: dict = {}
    with debug.session(watching(), log_dir=tmp_path), np.errstate(all="ignore"):
        pairs = zip(inputs(16, 32), inputs(16, 48, seed=7), strict=True)
        for step, (x, gradient) in enumerate(pairs):
            with te.autocast(enabled=True, recipe=recipe):
                out = layer(torch.from_numpy(x))
            Backward.apply(out, torch.from_numpy(gradient)).backward()
            debug.step()
            for tensor, value in (("activation", x), ("weight", weight), ("gradient", gradient)):
                history = histories[tensor]
                expected[step, tensor] = history.statistics(value, scales[tensor])
                scales[tensor] = history.scale
                history.update(value)
    values = recorded(tmp_path)
    for statistic in ALL:
        wanted = {at: each[statistic] for at, each in expected.items() if statistic in each}
        assert values[statistic].keys() == wanted.keys(), statistic
        for at, value in wanted.items():
            assert values[statistic][at] == pytest.approx(value, abs=1e-6, nan_ok=True), (
                statistic,
                at,
            )
    # The inputs have what the test is about: clipping, a jump, tensors of zeros, NaN and Inf.
    assert max(values["stale_saturated%"].values()) > 50
    assert max(map(abs, values["scale_jump"].values())) > 4
    assert len(values["scale_headroom"]) == len(expected) - 2
    assert sum(np.isnan(v) for v in values["scale_headroom"].values()) == 2
    assert -np.inf in values["scale_headroom"].values()


def test_worst_micro_batch_counts(tmp_path):
    layer = te.Linear(16, 16, params_dtype=torch.float32, name="fc")
    recipe = DelayedScaling(amax_history_len=1, amax_compute_algo="most_recent")
    with debug.session(watching(["activation"]), log_dir=tmp_path):
        for amax in (448.0, 224.0, 7.0):  # scales 1, 1 and 2
            with te.autocast(enabled=True, recipe=recipe):
                layer(torch.full((16, 16), amax)).sum().backward()
        debug.step()
        with te.autocast(enabled=True, recipe=recipe):
            layer(torch.full((16, 16), 14.0)).sum().backward()  # 64
        debug.step()
    values = recorded(tmp_path)
    assert values["scale_headroom"] == {(0, "activation"): 0.0, (1, "activation"): -1.0}
    assert values["stale_saturated%"] == {(0, "activation"): 0.0, (1, "activation"): 100.0}
    assert values["scale_jump"] == {(1, "activation"): 5.0}  # from the last micro-batch's 2


def outgrow_on_rank_1(rank: int, folder: str) -> None:
    """In iteration 1 rank 1 does not update its history either."""
    layer = te.Linear(16, 16, params_dtype=torch.float32, name="fc")
    recipe = DelayedScaling(amax_history_len=1, amax_compute_algo="most_recent")
    with debug.session(watching(["activation"]), log_dir=folder):
        for step in range(3):
            amax = 28.0 if (rank, step) == (1, 2) else 7.0
            grad = torch.set_grad_enabled((rank, step) != (1, 1))
            with grad, te.autocast(enabled=True, recipe=recipe):
                out = layer(torch.full((16, 16), amax))
            if out.requires_grad:
                out.sum().backward()
            debug.step()


def test_ranks_record_the_worst_value(tmp_path):
    run_ranks(outgrow_on_rank_1, str(tmp_path))
    (run,) = (tmp_path / "telens").iterdir()
    for rank in range(2):
        values = {
            statistic: [value for _, value in sorted(of_statistic.items())]
            for statistic, of_statistic in recorded(run / f"rank0000{rank}.h5").items()
        }
        assert values["scale_headroom"] == pytest.approx([6, 0, -2], abs=1e-6)
        assert values["scale_staleness"] == pytest.approx([-6, 0, 2], abs=1e-6)
        assert values["stale_saturated%"] == [0, 0, 50]
        assert values["scale_jump"] == [6, 0]
        assert values["scale_age"] == [0, 0, 1]


def test_a_history_that_nobody_updates_counts_up(tmp_path):
    layer = te.Linear(16, 16, params_dtype=torch.float32, name="fc")
    x = torch.randn(16, 16)
    with debug.session(watching(["activation"], freq=2), log_dir=tmp_path):
        train(layer, x, steps=4, fp8=True)
        for _ in range(6):
            with torch.no_grad(), te.autocast(enabled=True):
                layer(x)
            debug.step()
        train(layer, x, steps=4, fp8=True)
    # Iterations 4 to 9 do not update the history. 4 sees the update at the end of 3, 10 sees none,
    # 12 sees that of 11.
    ages = {iteration: age for (iteration, _), age in recorded(tmp_path)["scale_age"].items()}
    assert ages == {0: 0, 2: 0, 4: 0, 6: 2, 8: 4, 10: 6, 12: 0}


def test_current_scaling_always_fits(tmp_path):
    layer = te.Linear(16, 16, params_dtype=torch.float32, name="fc")
    with debug.session(watching(["activation"]), log_dir=tmp_path):
        for factor in (1, 3, 96):
            train(
                layer, torch.full((16, 16), float(factor)), fp8=True, recipe=Float8CurrentScaling()
            )
    values = recorded(tmp_path)
    assert list(values["scale_headroom"].values()) == pytest.approx([0, 0, 0], abs=1e-6)
    assert list(values["scale_staleness"].values()) == pytest.approx([0, 0, 0], abs=1e-6)
    jumps = list(values["scale_jump"].values())
    assert jumps == pytest.approx([-np.log2(3), -5], abs=1e-6)
    assert set(values["stale_saturated%"].values()) == set(values["scale_age"].values()) == {0}


def test_tensors_without_scales_warn_once(tmp_path, capfd):
    layers = [te.Linear(32, 32, params_dtype=torch.float32, name=name) for name in ("a", "b")]
    with debug.session(watching(["activation"]), log_dir=tmp_path):
        for layer in layers:
            train(layer, torch.randn(32, 32), fp8=True, recipe=MXFP8BlockScaling())
    assert "scale_headroom" not in recorded(tmp_path)
    assert "ScaleHealth: activation is not logged" in message_log(tmp_path)
    assert "each block has a separate scale here" in message_log(tmp_path)
    assert capfd.readouterr().err.count("ScaleHealth") == 1


def test_unquantized_and_empty_tensors_are_skipped(tmp_path):
    layer = te.Linear(16, 16, params_dtype=torch.float32, name="fc")
    with debug.session(watching(["activation"]), log_dir=tmp_path):
        train(layer, torch.randn(16, 16))
        train(layer, torch.randn(0, 16), fp8=True)
    assert recorded(tmp_path) == {}
    assert "it runs unquantized here" in message_log(tmp_path)


def test_only_chosen_statistics_and_counters_are_recorded(tmp_path):
    layer = te.Linear(16, 16, params_dtype=torch.float32, name="fc")
    with debug.session(watching(["weight"], stats=["scale_headroom"]), log_dir=tmp_path):
        train(layer, torch.randn(16, 16), fp8=True)
    counters = {"saturated", "nan", "posinf", "neginf", "nonfinite", "zeros", "subnormals"}
    assert set(recorded(tmp_path)) == {"scale_headroom", *counters}


def test_the_command_shows_the_course_of_a_scale(tmp_path, build_folder):
    layer = te.Linear(16, 16, params_dtype=torch.float32, name="fc")
    recipe = DelayedScaling(amax_history_len=1, amax_compute_algo="most_recent")
    with debug.session(watching(["activation"]), log_dir=tmp_path):
        for amax in (7.0, 7.0, 28.0):
            train(layer, torch.full((16, 16), amax), fp8=True, recipe=recipe)
    arguments = ["stats", tmp_path, "--stat", "scale_headroom", "--stat", "scale_age"]
    result = subprocess.run(
        [build_folder / "bin/telens", *arguments, "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = {row["statistic"]: row for row in json.loads(result.stdout)}
    assert (rows["scale_headroom"]["layer"], rows["scale_headroom"]["tensor"]) == (
        "fc",
        "activation",
    )
    assert rows["scale_headroom"]["min"] == pytest.approx(-2, abs=1e-6)
    # Not 6, as in the first iteration, whose scale is 1: that is warm-up.
    assert rows["scale_headroom"]["max"] == pytest.approx(0, abs=1e-6)
    assert (rows["scale_headroom"]["records"], rows["scale_headroom"]["warm-up"]) == (3, 1)
    assert rows["scale_age"]["max"] == 0


def test_a_trigger_may_keep_it_and_fire_at_it(tmp_path):
    config = {
        "alarm": section(
            {
                "Trigger": {
                    "enabled": True,
                    "when": "scale_headroom of activation < -0.5",
                    "write_last": 2,
                }
            },
            namespace="telens",
        )["section"],
        "kept": watching(["activation"], stats=["scale_jump"])["section"] | {"kept_by": "alarm"},
    }
    layer = te.Linear(16, 16, params_dtype=torch.float32, name="fc")
    recipe = DelayedScaling(amax_history_len=1, amax_compute_algo="most_recent")
    with debug.session(config, log_dir=tmp_path):
        for amax in (1.0, 1.0, 2.0, 1.0, 1.0):
            train(layer, torch.full((16, 16), amax), fp8=True, recipe=recipe)
    values = recorded(tmp_path)
    # The amax of iteration 2 is beyond the scale made in iteration 1.
    assert values["scale_headroom"][2, "activation"] == pytest.approx(-1)
    assert {iteration for iteration, _ in values["scale_jump"]} == {1, 2}


@pytest.mark.parametrize(
    ("stats", "message"),
    [
        (["scale_headrom"], "did you mean 'scale_headroom'"),
        (["mse"], "transformer_engine.LogFp8TensorStats has it"),
        (["mxfp8_scale_age"], "unknown statistic"),
        ([], "'stats' is empty"),
    ],
)
def test_a_statistic_of_another_name_is_an_error_at_load(tmp_path, stats, message):
    with pytest.raises(telens.ConfigError, match=message):
        debug.initialize(watching(stats=stats), log_dir=tmp_path)


def test_another_feature_says_who_has_a_statistic_of_scales(tmp_path):
    config = section(
        {"LogTensorStats": {"enabled": True, "tensors": "weight", "stats": ["scale_age"]}}
    )
    with pytest.raises(telens.ConfigError, match=r"telens\.ScaleHealth has it"):
        debug.initialize(config, log_dir=tmp_path)
