"""Named random states: numbers drawn inside ``fork(name)`` advance only that state."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from telens import _C
from telens._names import nearest, refusal, rejects_bools

__all__ = ["CudaRNGStatesTracker"]

DEFAULT_NAME = "model-parallel-rng"

# All live trackers of the process.
all_trackers: weakref.WeakSet[CudaRNGStatesTracker] = weakref.WeakSet()


class CudaRNGStatesTracker:
    """Named states of a device's default generator, as in Megatron and Transformer Engine.

    Modules accept a function that returns one as ``get_rng_state_tracker``: their weights and the
    dropout of attention are drawn inside its ``fork``.

    Parameters
    ----------
    device
        device of the generator. Default: the current GPU, or the CPU without a GPU
    """

    def __init__(self, device: torch.device | str | None = None) -> None:
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        self._device = torch.device(kind if device is None else device)
        all_trackers.add(self)
        self.reset()

    def reset(self) -> None:
        """Forgets all states."""
        self.states_: dict[str, torch.Tensor] = {}
        self.seeds_: set[int] = set()
        self._generators: dict[str, torch.Generator] = {}  # those that graphs know

    def get_states(self) -> dict[str, torch.Tensor]:
        """Returns a new dictionary of the states by name."""
        return dict(self.states_)

    def set_states(self, states: Mapping[str, torch.Tensor]) -> None:
        """Replaces all states by these."""
        if not isinstance(states, Mapping):
            expected = "a dictionary, as get_states returns it"
            raise refusal("CudaRNGStatesTracker.set_states", "states", expected, states)
        self.states_ = dict(states)

    @rejects_bools
    def add(self, name: str, seed: int) -> None:
        """Adds the state of a generator with this seed. The device's own state does not change.

        Raises UsageError (a RuntimeError) for a name or a seed that is there already.
        """
        if seed in self.seeds_ or name in self.states_:
            what = f"the name {name!r}" if name in self.states_ else f"the seed {seed}"
            raise _C.UsageError(f"CudaRNGStatesTracker.add: {what} exists already; use another")
        before = self._state()
        try:
            self._module().manual_seed(seed)
            self.states_[name] = self._state()
        finally:
            self._set_state(before)
        self.seeds_.add(seed)

    @contextlib.contextmanager
    def fork(self, name: str = DEFAULT_NAME) -> Iterator[None]:
        """Draws from the named state inside; afterwards the device's own state continues."""
        if name not in self.states_:
            raise KeyError(
                f"CudaRNGStatesTracker.fork: unknown state {name!r}{nearest(name, self.states_)}; "
                f"add it first: add({name!r}, seed)"
            )
        if self.is_of_gpu and torch.cuda.is_current_stream_capturing():
            with self._captured_fork(name):
                yield
            return
        before = self._state()
        self._set_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = self._state()
            self._set_state(before)

    # ------------------------------------------------------------------ CUDA graphs

    @property
    def is_of_gpu(self) -> bool:
        return self._device.type == "cuda"

    def generators(self) -> list[torch.Generator]:
        """Returns generators with the states, which a graph registers before its capture."""
        for name in self.states_:
            if name not in self._generators:
                self._generators[name] = torch.Generator(self._device)
        self.load_generators()
        return list(self._generators.values())

    def load_generators(self) -> None:
        """Loads the states into the generators before a replay."""
        for name, generator in self._generators.items():
            if name in self.states_:
                generator.set_state(self.states_[name])

    def store_generators(self) -> None:
        """Stores the states of the generators after a replay, for later forks."""
        for name, generator in self._generators.items():
            if name in self.states_:
                self.states_[name] = generator.get_state()

    @contextlib.contextmanager
    def _captured_fork(self, name: str) -> Iterator[None]:
        """A fork inside a capture, which cannot set states: the device's generator is redirected to
        another one."""
        if name not in self._generators:
            raise _C.UsageError(
                f"CudaRNGStatesTracker.fork: {name!r} cannot be forked in a capture that does not "
                "know its generator; capture with make_graphed_callables"
            )
        own = torch.cuda.default_generators[self._index()]
        before = own.graphsafe_get_state()
        own.graphsafe_set_state(self._generators[name])
        try:
            yield
        finally:
            own.graphsafe_set_state(before)

    def _index(self) -> int:
        index = self._device.index
        return torch.cuda.current_device() if index is None else index

    def _module(self) -> Any:
        return torch if self._device.type == "cpu" else torch.get_device_module(self._device)

    def _state(self) -> torch.Tensor:
        arguments = () if self._device.type == "cpu" else (self._device,)
        return self._module().get_rng_state(*arguments)

    def _set_state(self, state: torch.Tensor) -> None:
        arguments = () if self._device.type == "cpu" else (self._device,)
        self._module().set_rng_state(state, *arguments)


def apply_seed(device: torch.device | str | int | None) -> None:
    """Prepares the device's generator for a C++ module that draws its weights; None: the default
    device.

    torch.manual_seed seeds GPUs when torch.cuda is first used, but C++ code draws without
    initializing it.
    """
    if device is None:
        device = _C.default_device(torch.cuda.is_available())
    if torch.device(device).type == "cuda" and torch.cuda.is_available():
        torch.cuda.init()


def fork_of(
    arguments: Mapping[str, Any],
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Returns the context in which a module draws its weights, given its keyword arguments."""
    get_tracker = arguments.get("get_rng_state_tracker")
    if get_tracker is None:
        return contextlib.nullcontext
    name = arguments.get("rng_tracker_name") or DEFAULT_NAME
    return lambda: get_tracker().fork(name)


def fork_dropout(attention: torch.nn.Module, get_tracker: Callable[[], Any]) -> None:
    """Makes a DotProductAttention draw its dropout inside the tracker's fork."""
    attention.__dict__["_telens_get_tracker"] = get_tracker
    attention.register_forward_pre_hook(_enter_fork)
    # Also after an exception, or the device would keep the named state.
    attention.register_forward_hook(_leave_fork, always_call=True)


def find_trackers(module: torch.nn.Module) -> list[Any]:
    """Returns the trackers that the module's forward draws from, without duplicates."""
    functions = [each.__dict__.get("_telens_get_tracker") for each in module.modules()]
    trackers = [get_tracker() for get_tracker in functions if get_tracker is not None]
    return list({id(each): each for each in trackers}.values())


def _enter_fork(attention: torch.nn.Module, args: Any) -> None:
    get_tracker = attention.__dict__.get("_telens_get_tracker")
    if get_tracker is not None and attention.training and attention.attention_dropout != 0:
        fork = get_tracker().fork()
        fork.__enter__()
        attention.__dict__.setdefault("_telens_forks", []).append(fork)


def _leave_fork(attention: torch.nn.Module, args: Any, output: Any) -> None:
    forks = attention.__dict__.get("_telens_forks")
    if forks:
        forks.pop().__exit__(None, None, None)
