"""Runs telens.watch on tiny models of transformers: one class for each modeling file.

    campaign.py RESULTS [--table FILE] [--only NAME ...] [--again] [--seconds S]

Each class runs in a separate process and adds a line to RESULTS (JSON). Classes in RESULTS are
skipped, so that a stopped campaign can be continued.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch
import transformers
from compare import EXACT, STEPS, check
from tiny_models import Case, all_cases, build, inputs_of, working_inputs

MEMORY = 12 << 30  # address space of one process, bytes
PARAMETERS = 40_000_000  # larger models are not run


def run_case(case: Case) -> dict:
    """Returns the result of one class: passed, failed or not built."""
    try:
        model = build(case)
        count = sum(each.numel() for each in model.parameters())
        if count > PARAMETERS:
            raise RuntimeError(f"{count:,} parameters with small sizes")
        index = working_inputs(model)
    except Exception as error:
        return {"result": "not built", "reason": reason_of(error)}
    try:
        kinds = check(lambda: build(case), lambda model, random: inputs_of(model, index, random))
    except AssertionError as error:
        return {"result": "failed", "reason": str(error)}
    except Exception as error:
        result = "not built" if "not deterministic" in str(error) else "failed"
        return {"result": result, "reason": reason_of(error)}
    return {"result": "passed", "parameters": count, **kinds}


def reason_of(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {lines[0][:160]} ({Path(place.filename).name}:{place.lineno})"


def in_child(case: Case, seconds: float) -> dict:
    """Runs one class in a forked process, in which transformers is already imported."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            result = run_case(case)
        except BaseException as error:
            result = {"result": "failed", "reason": repr(error)}
        os.write(write, json.dumps(result).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    if text:
        return json.loads(text)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        reason = f"killed by {signal.Signals(number).name}"
        if number in (signal.SIGXCPU, signal.SIGKILL):
            reason += f" (limit: {seconds:.0f} s of processor time)"
        return {"result": "failed", "reason": reason}
    return {"result": "failed", "reason": f"exit code {os.WEXITSTATUS(status)} without a result"}


def read_results(path: Path) -> dict[str, dict]:
    if not path.exists():
        return {}
    lines = map(json.loads, path.read_text().splitlines())
    return {each["class"]: each for each in lines}


def table_of(results: dict[str, dict]) -> str:
    """Returns the page of results."""
    rows = sorted(results.values(), key=lambda each: each["file"])
    passed = [each for each in rows if each["result"] == "passed"]
    kinds = ("linear", "embedding", "convolution", "norm", "attention", "calls")
    lines = [
        "<!-- Written by `make test-architectures`. -->",
        "",
        "# Architectures that telens.watch was checked on",
        "",
        f"One class for each modeling file of transformers {transformers.__version__}, with",
        f"small sizes and random weights, torch {torch.__version__.split('+')[0]}, CPU, FP32.",
        f"{STEPS} steps with AdamW, with and without `telens.watch`: losses, gradients, parameters",
        "and buffers have equal bits. The run has rows for each call that forward hooks counted,",
        f"and the exact amaxes of {EXACT} layers of each kind in all steps.",
        "",
        f"{len(passed)} classes pass, "
        f"{sum(each['result'] == 'failed' for each in rows)} fail, "
        f"{sum(each['result'] == 'not built' for each in rows)} could not be built.",
        "",
        "| class | " + " | ".join(kinds) + " |",
        "|---|" + "---:|" * len(kinds),
    ]
    for each in passed:
        numbers = " | ".join(str(each.get(kind, 0)) for kind in kinds)
        lines.append(f"| {each['class']} | {numbers} |")
    for result, title in (("failed", "Failed"), ("not built", "Not built")):
        some = [each for each in rows if each["result"] == result]
        if some:
            lines += ["", f"## {title}", "", "| class | reason |", "|---|---|"]
            lines += [f"| {each['class']} | {cell(each['reason'])} |" for each in some]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--again", action="store_true", help="also run classes without success")
    parser.add_argument("--seconds", type=float, default=180, help="processor time per class")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cases = all_cases()
    results = read_results(options.results)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    for index, case in enumerate(cases):
        known = results.get(case.name)
        if options.only and case.name not in options.only and case.file not in options.only:
            continue
        if known and not options.only and (known["result"] == "passed" or not options.again):
            continue
        start = time.monotonic()
        result = {"class": case.name, "file": case.file, **in_child(case, options.seconds)}
        results[case.name] = result
        with options.results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        reason = result.get("reason", "")
        seconds = time.monotonic() - start
        print(f"{index + 1}/{len(cases)} {case}: {result['result']} {reason} ({seconds:.1f} s)")
        sys.stdout.flush()
    if options.table:
        options.table.write_text(table_of(results))
    passed = sum(each["result"] == "passed" for each in results.values())
    failed = [each["class"] for each in results.values() if each["result"] == "failed"]
    print(f"{passed} of {len(cases)} classes pass; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
