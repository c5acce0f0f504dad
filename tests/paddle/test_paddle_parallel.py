"""Two processes over gloo, which Paddle's CPU wheel contains."""

import os
import subprocess
import sys
from pathlib import Path

import paddle_helpers as helpers
import pytest
from paddle.distributed.fleet.meta_parallel import get_rng_state_tracker

import telens
import telens.paddle as te
from telens.paddle import tensor_parallel

WORKER = Path(__file__).parent / "parallel_worker.py"


def test_layers_divided_between_two_ranks_are_the_whole_layers(tmp_path):
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"),
            *("--backend", "gloo", "--log_dir", str(tmp_path), str(WORKER)),
        ],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    logs = "".join(path.read_text() for path in sorted(tmp_path.glob("workerlog.*")))
    assert done.returncode == 0, logs[-6000:]
    assert logs.count("both ranks agree") == 2, logs[-6000:]


class TwoRanks:
    """A group that only tells a layer its part; making a layer sends nothing."""

    nranks = 2
    rank = 1


@pytest.mark.parametrize("mode", ["Column", "column", "Row", "row", None])
def test_capitals_or_none(mode):
    layer = te.Linear(32, 48, parallel_mode=mode)
    assert layer.weight.shape == [48, 32]  # one rank


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="parallel_mode"):
        te.Linear(32, 48, parallel_mode="diagonal")


def test_sizes_not_divisible_by_ranks_are_rejected():
    with pytest.raises(ValueError, match="divide"):
        te.MultiHeadAttention(48, 3, set_parallel_mode=True, tp_group=TwoRanks())
    with pytest.raises(ValueError, match="ffn_hidden_size"):
        te.LayerNormMLP(32, 33, set_parallel_mode=True, tp_group=TwoRanks())


def test_a_norm_before_rows_is_refused():
    with pytest.raises(ValueError, match="parallel_mode"):
        te.LayerNormLinear(32, 48, parallel_mode="Row", tp_group=TwoRanks())


@pytest.fixture
def random_states():
    """The random state for parts of weights, which fleet.init creates."""
    tracker = get_rng_state_tracker()
    tracker.add("model_parallel_rng", 1)
    yield
    tracker.reset()


def test_a_group_that_is_given_decides_the_part(random_states):
    parts = {"tp_group": TwoRanks()}
    assert te.Linear(32, 48, parallel_mode="Column", **parts).weight.shape == [24, 32]
    assert te.Linear(32, 48, parallel_mode="Row", **parts).weight.shape == [48, 16]
    assert te.LayerNormLinear(32, 48, parallel_mode="Column", **parts).weight.shape == [24, 32]
    mlp = te.LayerNormMLP(32, 64, set_parallel_mode=True, **parts)
    assert (mlp.fc1_weight.shape, mlp.fc2_weight.shape) == ([32, 32], [32, 32])
    heads = te.MultiHeadAttention(32, 4, set_parallel_mode=True, **parts)
    assert (heads.qkv.weight.shape, heads.proj.weight.shape) == ([48, 32], [32, 16])
    layer = te.TransformerLayer(32, 64, 4, set_parallel_mode=True, **parts)
    assert layer.layernorm_mlp.fc1_weight.shape == [32, 32]


@pytest.mark.parametrize(
    "layer",
    [
        lambda: te.Linear(32, 48, parallel_mode="Column", tp_group=TwoRanks()),
        lambda: te.LayerNormMLP(32, 64, set_parallel_mode=True, tp_group=TwoRanks()),
    ],
    ids=["Linear", "LayerNormMLP"],
)
def test_parallel_layers_without_fleets_random_state_name_the_call(layer):
    with pytest.raises(
        telens.UsageError, match=r"'model_parallel_rng'.*model_parallel_random_seed"
    ):
        layer()


def test_a_missing_random_state_of_a_name_names_the_call(random_states):
    with (
        pytest.raises(telens.UsageError, match=r"add\('local_seed', seed\)"),
        tensor_parallel.random_state(parallel=True, name="local_seed"),
    ):
        pass


def test_a_group_divides_the_heads_of_attention():
    layer = te.DotProductAttention(4, 8, 2, 0.0, tp_group=TwoRanks())
    query, key = helpers.randoms(2, 8, 2, 8), helpers.randoms(2, 8, 1, 8)
    assert layer(query, key, key).shape == [2, 8, 2, 8]


def test_sequence_parallel_ranks_draw_separate_dropout(random_states):
    with pytest.warns(UserWarning, match="local_seed"):
        layer = te.TransformerLayer(
            32, 64, 4, set_parallel_mode=True, sequence_parallel=True, tp_group=TwoRanks()
        )
    assert layer.hidden_dropout_rng_state_name == "local_seed"
