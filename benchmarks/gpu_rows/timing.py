"""How long calls take: on a GPU by CUDA events, in a rehearsal not at all."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator

import torch

Call = Callable[[], object]
WARM_UPS = 3
SECONDS_PER_CALL = 0.6  # the time to measure one contender
MOST_ROUNDS, LEAST_ROUNDS = 50, 7
# About a millisecond: longer than the host needs to launch an operator, or the first kernels of a
# layer, of which each then takes longer than its launch.
HEAD_START_CYCLES = 2_000_000


class EventTimer:
    """Medians over rounds in which the contenders take turns."""

    def __init__(self, quick: bool):
        self.quick = quick

    def rounds(self, seconds: float) -> int:
        if self.quick:
            return LEAST_ROUNDS
        return int(min(MOST_ROUNDS, max(LEAST_ROUNDS, SECONDS_PER_CALL / seconds)))

    def device_seconds(self, calls: list[Call]) -> list[float]:
        """From CUDA events before and after each call."""
        return self.medians(calls, self.time_events)

    def host_seconds(self, calls: list[Call]) -> list[float]:
        """What the host needs until a call returns, the GPU being idle before it."""
        return self.medians(calls, self.time_host)

    def medians(self, calls: list[Call], time_one: Callable[[Call], float]) -> list[float]:
        first = []
        for call in calls:
            for _ in range(WARM_UPS):
                first.append(time_one(call))
        samples: list[list[float]] = [[] for _ in calls]
        for _ in range(self.rounds(statistics.median(first))):
            for call, times in zip(calls, samples, strict=True):
                times.append(time_one(call))
        return [statistics.median(times) for times in samples]

    @staticmethod
    def time_events(call: Call) -> float:
        """Of the device alone: it is kept busy until the host has launched what is timed."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(HEAD_START_CYCLES)
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    @staticmethod
    def time_host(call: Call) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        torch.cuda.synchronize()
        return seconds

    def launches(self, call: Call) -> Counter:
        """Kernels and copies on the GPU, by name."""
        return count_events(call, torch.profiler.ProfilerActivity.CUDA, self.on_gpu)

    @staticmethod
    def on_gpu(events) -> Iterator[str]:
        on_device = torch.autograd.DeviceType.CUDA
        return (event.name for event in events if event.device_type == on_device)


class RehearsalTimer:
    """Every call once, on the CPU, and figures that stand for nothing."""

    def device_seconds(self, calls: list[Call]) -> list[float]:
        for call in calls:
            call()
        return [1.0] * len(calls)

    host_seconds = device_seconds

    def time_events(self, call: Call) -> float:
        return self.device_seconds([call])[0]

    def launches(self, call: Call) -> Counter:
        """Operators on the CPU, by name: there is no kernel to be seen."""
        return count_events(call, torch.profiler.ProfilerActivity.CPU, self.operators)

    @staticmethod
    def operators(events) -> Iterator[str]:
        return (event.name for event in events if "::" in event.name)


def count_events(call: Call, activity, names_in) -> Counter:
    call()
    with torch.profiler.profile(activities=[activity]):
        call()  # the first profile of a process may miss events
    with torch.profiler.profile(activities=[activity]) as profile:
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return Counter(names_in(profile.events()))
