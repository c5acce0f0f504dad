"""Base statistics of a script's own tensors through log_tensor_stats: ours and nvdlfw-inspect's.

Prints one JSON object a tensor, as the C++ programs do: seconds of a call and the step() after it.
Argument: the rounds.
"""

import contextlib
import json
import logging
import os
import sys
import tempfile
import time

import nvdlfw_inspect.api as peer
import torch

import telens.debug as telens

CONFIG = {
    "section": {
        "enabled": True,
        "layers": {"layer_types": ["layer"]},
        "LogTensorStats": {
            "enabled": True,
            "tensors": ["tensor"],
            "stats": ["min", "max", "mean", "std", "l1_norm", "l2_norm"],
            "freq": 1,
        },
    }
}


def make_tensors():
    """By name: the tensor, and how many calls are timed together."""
    values = torch.randn(4 << 20)
    return {
        "4M FP32": (values, 1),
        "4M BF16": (values.bfloat16(), 1),
        "1,024 FP32": (values[:1024].clone(), 100),
    }


def time_calls(api, x, calls):
    start = time.perf_counter()
    for _ in range(calls):
        api.log_tensor_stats("layer", tensor_name="tensor", tensor=x)
        api.step()
    return (time.perf_counter() - start) / calls


@contextlib.contextmanager
def sessions(folder):
    """Both at once. The peer writes to the terminal, too, which is left out."""
    telens.initialize(CONFIG, log_dir=f"{folder}/telens")
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        peer.initialize(config_file=CONFIG, log_dir=f"{folder}/peer")
    for name in ("nvdlfw_inspect", "Default Statistics"):
        for handler in logging.getLogger(name).handlers:
            if type(handler) is logging.StreamHandler:
                handler.setStream(open(os.devnull, "w"))  # noqa: SIM115
    try:
        yield
    finally:
        peer.end_debug()
        telens.end_debug()


def main():
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory(prefix="telens-bench-") as folder, sessions(folder):
        for name, (x, calls) in make_tensors().items():
            samples = {"telens": [], "nvdlfw-inspect": []}
            for round_number in range(int(sys.argv[1]) + 1):
                for who, api in (("telens", telens), ("nvdlfw-inspect", peer)):
                    seconds = time_calls(api, x, calls)
                    if round_number > 0:  # the first one warms up
                        samples[who].append(seconds)
            print(json.dumps({"row": name, "samples": samples}), flush=True)


if __name__ == "__main__":
    main()
