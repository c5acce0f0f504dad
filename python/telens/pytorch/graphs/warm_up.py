"""Runs modules before a capture, and restores their state afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from telens import _C
from telens.pytorch.checkpoints.extra_state import WithExtraState
from telens.pytorch.graphs.runner import Runner
from telens.pytorch.module import Module
from telens.pytorch.parallel.rng_tracker import find_trackers

__all__ = ["warm_up"]

Window = tuple[torch.Tensor, torch.Tensor]


def warm_up(
    runners: Sequence[Runner],
    iterations: int,
    hooks: tuple[Callable[[], None] | None, ...],
    captures: bool,
) -> None:
    """Runs each module forward and backward, and restores random states and FP8 states.

    captures: if graphs are captured afterwards, histories and scales keep their memory, and so do
    weights that are kept for later micro-batches.
    """
    before, after = hooks
    devices = {runner.device for runner in runners if runner.device.type == "cuda"}
    with _untouched_state(runners, captures, devices), _side_stream(devices):
        if before is not None:
            before()
        for _ in range(iterations):
            for runner in runners:
                for flag in runner.flags if captures else (None,):
                    _run_once(runner, flag)
        if after is not None:
            after()


def _run_once(runner: Runner, flag: bool | None) -> None:
    with (
        runner.hooks.around("forward"),
        torch.set_grad_enabled(runner.module.training),
        runner.region(),
    ):
        made = runner.run(flag)
    if not runner.module.training:
        return
    with runner.hooks.around("backward"):
        runner.gradients(made, [torch.zeros_like(each) for each in made])
    if runner.wgrads:
        runner.wgrads.make_apart()


@contextlib.contextmanager
def _side_stream(devices: set[torch.device]) -> Iterator[None]:
    """Runs the block on side streams, so that libraries allocate no memory for the caller's."""
    with contextlib.ExitStack() as stack:
        for device in devices:
            stack.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))
        _wait_for(devices)
        try:
            yield
        except BaseException:
            # States are restored next, and kernels may still write to them. The original error
            # is more useful than an error of this wait.
            with contextlib.suppress(RuntimeError):
                _wait_for(devices)
            raise
    _wait_for(devices)


def _wait_for(devices: set[torch.device]) -> None:
    for device in devices:
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def _untouched_state(
    runners: Sequence[Runner], captures: bool, devices: set[torch.device]
) -> Iterator[None]:
    """Restores random states of CPU and GPUs, amax histories and scales."""
    modules = {id(each): each for runner in runners for each in runner.module.modules()}.values()
    ours = [each for each in modules if isinstance(each, Module)]
    layers = [each._telens_adapter for each in ours if isinstance(each, WithExtraState)]
    put_back = _windows_kept(layers) if captures else _states_kept(layers)
    trackers = [each for runner in runners for each in find_trackers(runner.module)]
    named = [(tracker, tracker.get_states()) for tracker in trackers]
    random = torch.get_rng_state()
    random_of_devices = [(torch.cuda.get_rng_state(each), each) for each in devices]
    try:
        yield
    finally:
        torch.set_rng_state(random)
        for state, device in random_of_devices:
            torch.cuda.set_rng_state(state, device)
        for tracker, states in named:
            tracker.set_states(states)
        put_back()


def _states_kept(layers: Sequence[_C.ModuleAdapter]) -> Callable[[], None]:
    states = [(layer, layer.extra_state()) for layer in layers]

    def put_back() -> None:
        for layer, state in states:
            empty = torch.empty(0, dtype=torch.uint8)
            layer.set_extra_state(empty if state is None else state)

    return put_back


def _windows_kept(layers: Sequence[_C.ModuleAdapter]) -> Callable[[], None]:
    """Like _states_kept, but keeps the tensors that graphs will write to, new ones too."""
    before = [(layer, [_copied(layer.amax_window(b)) for b in (False, True)]) for layer in layers]

    def put_back() -> None:
        for layer, kept in before:
            present = [layer.amax_window(backward) for backward in (False, True)]
            if None in present:
                continue
            layer.set_amax_windows(*map(_of_present_length, kept, present))

    return put_back


def _copied(window: Window | None) -> Window | None:
    return None if window is None else (window[0].clone(), window[1].clone())


def _of_present_length(kept: Window | None, present: Window) -> Window:
    """Returns the newest rows of the kept history in its present length, or a fresh one."""
    history, scale = torch.zeros_like(present[0]), torch.ones_like(present[1])
    if kept is not None:
        rows = min(len(kept[0]), len(history))
        history[:rows].copy_(kept[0][:rows])
        scale.copy_(kept[1])
    return history, scale
