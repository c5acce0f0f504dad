"""log_tensor_stats beside that of nvdlfw-inspect."""

import importlib.util
import json
import statistics

from programs import CannotRun, ratio
from report import Row, at_least

from rows.group import Group

PEER_STATISTICS = {
    "4M FP32": "log_tensor_stats of 4M FP32 elements against nvdlfw-inspect",
    "4M BF16": "log_tensor_stats of 4M BF16 elements against nvdlfw-inspect",
    "1,024 FP32": "log_tensor_stats of 1,024 FP32 elements against nvdlfw-inspect",
}


def why_no_fifty_times(samples):
    """A tensor is read once where the peer reads it six times; a call has six lines to log."""
    call = statistics.median(samples["telens"])
    return (
        f"a call and its step() take {1e6 * call:.0f} us; the peer reads the tensor once for each "
        "of six statistics, with torch's own vectorized and threaded kernels, so that one read of "
        "a tensor out of cache can be six times as fast, and more only where torch converts first "
        "(BF16). On 1,024 elements both write six lines of text and flush them, as the contract "
        "has it"
    )


def peer_statistics_rows(programs):
    if not importlib.util.find_spec("nvdlfw_inspect"):
        raise CannotRun("nvdlfw-inspect is not installed")
    lines = programs.run_python("log_tensor_stats").splitlines()
    samples = {row["row"]: row["samples"] for row in map(json.loads, lines)}
    for tensor, name in PEER_STATISTICS.items():
        both = samples[tensor]
        value = ratio(both, "nvdlfw-inspect", "telens")
        reason = why_no_fifty_times(both)
        yield Row(name, value, "x faster", at_least(50), both, if_missed=reason)


GROUP = Group(list(PEER_STATISTICS.values()), peer_statistics_rows)
