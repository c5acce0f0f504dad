"""Sessions on a GPU: the host waits for nothing, and a training step with statistics on may be
captured into a CUDA graph. Skipped where there is no GPU or the library was built without CUDA;
`make gpu-check` runs it where there is one."""

import copy

import h5py
import pytest
import torch
from debug_helpers import Scalars, logging_of, section

import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

TENSORS = ["activation", "weight", "gradient", "output", "dgrad", "wgrad"]
STATISTICS = ["min", "max", "mean", "std", "l1_norm", "l2_norm"]
WARM_UP, STEPS = 3, 8


class Training:
    """The same in every test: layers, their input, and an optimizer that a graph may hold."""

    def __init__(self, recipe):
        torch.manual_seed(3)
        self.recipe = recipe
        self.model = torch.nn.Sequential(
            te.LayerNormLinear(64, 128, params_dtype=torch.bfloat16, device="cuda", name="first"),
            te.Linear(128, 64, params_dtype=torch.bfloat16, device="cuda", name="second"),
        )
        self.x = torch.randn(32, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loss = None

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        with te.autocast(enabled=self.recipe is not None, recipe=self.recipe):
            out = self.model(self.x)
        self.loss = out.float().square().mean()
        self.loss.backward()
        self.optimizer.step()

    def warm_up(self, steps: int, after=debug.step) -> list[float]:
        """On its own stream, as torch demands before a capture."""
        losses = []
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(steps):
                self.step()
                losses.append(self.loss.detach().clone())
                after()
        torch.cuda.current_stream().wait_stream(stream)
        return [loss.item() for loss in losses]

    def capture(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph


@pytest.fixture
def start(ops, tmp_path):
    def begin(config) -> Scalars:
        logger = Scalars()
        debug.initialize(
            copy.deepcopy(config),
            log_dir=str(tmp_path),
            statistics_logger=logger,
            default_logging_enabled=False,
        )
        return logger

    return begin


RECIPES = [None, DelayedScaling(amax_history_len=4), Float8CurrentScaling()]


@pytest.mark.parametrize("recipe", RECIPES, ids=["bf16", "delayed", "current"])
def test_a_step_with_statistics_does_not_make_the_host_wait(start, recipe):
    logger = start(logging_of(TENSORS, STATISTICS))
    training = Training(recipe)
    training.step()
    debug.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            training.step()
            debug.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    debug.end_debug()
    assert logger.values("first_activation_max").keys() == set(range(4))


def run(start, config, recipe, captured: bool):
    logger = start(config)
    training = Training(recipe)
    losses = training.warm_up(WARM_UP)
    if captured:
        graph = training.capture()
    for _ in range(WARM_UP, STEPS):
        if captured:
            graph.replay()
        else:
            training.step()
        losses.append(training.loss.item())
        debug.step()
    debug.end_debug()
    return losses, sorted(logger.rows)


@pytest.mark.parametrize("recipe", RECIPES, ids=["bf16", "delayed", "current"])
@pytest.mark.parametrize("freq", [1, 3, 4])
def test_a_captured_step_trains_and_logs_as_an_eager_one(start, recipe, freq):
    """With freq 3 the iteration of the capture is due, with 4 it is not."""
    config = logging_of(TENSORS, STATISTICS, freq=freq)
    losses, rows = run(start, config, recipe, captured=False)
    losses_of_graph, rows_of_graph = run(start, config, recipe, captured=True)
    assert losses_of_graph == losses
    assert rows_of_graph == rows
    assert {iteration for _, _, iteration in rows} == set(range(0, STEPS, freq))


def test_fp8_statistics_of_a_captured_step_match_eager(start):
    config = logging_of(
        ["activation", "weight", "gradient"],
        ["underflows%", "scale_inv_max", "mse", "fp8_current_scaling_mse"],
        feature="LogFp8TensorStats",
    )
    recipe = DelayedScaling(amax_history_len=4)
    losses, rows = run(start, config, recipe, captured=False)
    losses_of_graph, rows_of_graph = run(start, config, recipe, captured=True)
    assert losses_of_graph == losses
    assert rows_of_graph == rows


def test_graph_still_replays_after_its_session(start):
    start(logging_of(TENSORS, STATISTICS))
    training = Training(None)
    training.warm_up(WARM_UP)
    graph = training.capture()
    graph.replay()
    debug.step()
    debug.end_debug()
    before = training.loss.item()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    assert training.loss.item() < before


@pytest.mark.parametrize("feature", ["ValueHistogram", "GemmError"])
def test_feature_that_needs_the_host_is_rejected(start, feature):
    names = {"tensors": ["activation"]} if feature == "ValueHistogram" else {"gemms": ["fprop"]}
    start(section({feature: {"enabled": True, **names}}, namespace="telens"))
    training = Training(None)
    training.warm_up(WARM_UP)
    with pytest.raises(RuntimeError, match=rf"'{feature}' of section 'section'.*'first'"):
        training.capture()
    torch.cuda.synchronize()
    training.step()
    debug.step()


def test_statistics_that_begin_after_the_capture_are_logged(start):
    config = logging_of(TENSORS, STATISTICS, start_step=WARM_UP + 2)
    losses, rows = run(start, config, None, captured=False)
    losses_of_graph, rows_of_graph = run(start, config, None, captured=True)
    assert losses_of_graph == losses
    assert rows_of_graph == rows
    assert {iteration for _, _, iteration in rows} == set(range(WARM_UP + 2, STEPS))


def test_capture_without_a_previous_step_is_rejected(start):
    Training(None).step()  # torch allocates its own memory first
    start(logging_of(TENSORS, STATISTICS))
    training = Training(None)
    with pytest.raises(RuntimeError, match=r"'first'.*run a step before the capture"):
        training.capture()
    torch.cuda.synchronize()


def altering(**schedule):
    names = {"gemms": ["fprop", "dgrad", "wgrad"], "tensors": ["activation", "weight", "gradient"]}
    return section({"FakeQuant": {"enabled": True, "quant_format": "FP8E4M3", **names, **schedule}})


def test_feature_that_modifies_every_iteration_is_captured(start):
    losses, _ = run(start, altering(), None, captured=False)
    losses_of_graph, _ = run(start, altering(), None, captured=True)
    assert losses_of_graph == losses


@pytest.mark.parametrize("schedule", [{"end_step": 100}, {"start_step": 100}, {"freq": 2}])
def test_feature_that_modifies_some_iterations_is_rejected(start, schedule):
    start(altering(**schedule))
    training = Training(None)
    training.warm_up(WARM_UP)
    with pytest.raises(RuntimeError, match=r"'first'.*'FakeQuant' of section 'section'"):
        training.capture()
    torch.cuda.synchronize()
    training.step()
    debug.step()


def test_dumps_are_asynchronous_and_hold_the_captured_values(start, tmp_path):
    config = {"high_precision_tensor": True, "tensors": ["weight"], "enabled": True}
    start(section({"DumpTensors": config}))
    training = Training(None)
    before = [training.model[1].weight.detach().clone()]
    training.step()
    debug.step()
    before.append(training.model[1].weight.detach().clone())
    torch.cuda.set_sync_debug_mode("error")
    try:
        training.step()
        debug.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    debug.end_debug()
    for iteration, weight in enumerate(before):
        [path] = tmp_path.rglob(f"iter_{iteration:06d}/second_weight.h5")
        with h5py.File(path) as file:
            dumped = torch.from_numpy(file["high_precision"][()].view("int16"))
        assert torch.equal(dumped.view(torch.bfloat16), weight.cpu())
