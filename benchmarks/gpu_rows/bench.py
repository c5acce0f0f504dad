"""What rows measure with: device, sizes, operators, tensors, and the comparisons that many make."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpu_rows.row import CannotRun, Measured
from gpu_rows.timing import Call, EventTimer, RehearsalTimer

E4M3, E5M2, E2M1 = 0, 1, 2  # core/formats/format_id.h
TENSOR_SCALING = 0  # core/formats/scheme.h
TERA = 1e12


@dataclass(frozen=True)
class Sizes:
    """Of the targets; a rehearsal takes tiny ones."""

    rows: int = 16384
    columns: int = 8192
    gemm: int = 8192
    hidden: int = 4096
    ffn: int = 11008
    heads: int = 32
    sequence: int = 2048
    batch: int = 4
    # Calls of a tiny operation, since one is too short to be timed; so few that the launch queue,
    # where the host waits when it is full, takes them all.
    host_calls: int = 20


TINY = Sizes(
    rows=64, columns=128, gemm=32, hidden=64, ffn=128, heads=2, sequence=16, batch=2, host_calls=2
)


class Bench:
    def __init__(self, library: str, quick: bool = False, rehearse: bool = False):
        torch.ops.load_library(library)
        self.ops = torch.ops.telens
        self.rehearse = rehearse
        self.device = "cpu" if rehearse else "cuda"
        self.sizes = TINY if rehearse else Sizes()
        self.timer = RehearsalTimer() if rehearse else EventTimer(quick)

    def operator(self, name: str):
        """telens::<name>, if this build has it for the device."""
        key = self.device.upper()
        known = f"telens::{name}" in torch._C._dispatch_get_all_op_names()
        has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
        if not known or not has_kernel(f"telens::{name}", key):
            raise CannotRun(f"telens::{name} has no kernel for {key} in this build")
        return getattr(self.ops, name)

    def arguments_of(self, name: str, values: dict) -> list:
        """For an operator, by the names in its schema; those that have a default may be left."""
        schema = self.operator(name).default._schema
        given = []
        for argument in schema.arguments:
            if argument.name in values:
                given.append(values[argument.name])
            elif argument.has_default_value():
                given.append(argument.default_value)
            else:
                raise CannotRun(f"telens::{name} takes '{argument.name}', unknown to this row")
        return given

    def randn(self, *shape: int, dtype=torch.bfloat16, requires_grad=False) -> torch.Tensor:
        return torch.randn(*shape, device=self.device, dtype=dtype, requires_grad=requires_grad)

    def one(self, value: float) -> torch.Tensor:
        return torch.tensor([value], dtype=torch.float32, device=self.device)

    def compiled(self, function: Callable) -> Callable:
        """By torch.compile; a rehearsal only traces."""
        return torch.compile(function, backend="eager" if self.rehearse else "inductor")

    def seconds(self, *calls: Call) -> list[float]:
        return self.timer.device_seconds(list(calls))

    def seconds_of_one(self, call: Call) -> list[float]:
        """Of a single call, for contenders that cannot take turns; one call warms up."""
        call()
        return [self.timer.time_events(call)]

    def against(self, call: Call, peer_call: Call, operations: float = 0) -> Measured:
        ours, theirs = self.seconds(call, peer_call)
        rate = f"{operations / ours / TERA:.0f} TFLOP/s" if operations else ""
        return Measured(ours, theirs, rate)

    def against_copy(self, call: Call, moved: int) -> Measured:
        """Against a copy on the device. `moved`: bytes that must be read plus those written."""
        source = torch.empty(moved // 2, dtype=torch.uint8, device=self.device).random_(0, 255)
        destination = torch.empty_like(source)
        ours, copy = self.seconds(call, lambda: destination.copy_(source))
        return Measured(ours, copy, f"{moved / ours / TERA:.2f} TB/s")

    def settle(self) -> None:
        """Between rows: raises what the GPU still has to say, and frees what nobody needs."""
        if not self.rehearse:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


@contextlib.contextmanager
def fp8(enabled: bool = True):
    """A region of delayed scaling, if enabled."""
    import telens.pytorch as te
    from telens.common.recipe import DelayedScaling

    with te.autocast(enabled=enabled, recipe=DelayedScaling() if enabled else None):
        yield
