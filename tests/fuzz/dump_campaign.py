"""Damages dumps and saved states, reads them, and counts the outcomes.

    tests/fuzz/dump_campaign.py --dumps 5000 --states 2000 [--seed 1] [--progress FILE]

Everything runs in this process, with the `telens` that Python imports. With --progress, a campaign
that ended or crashed continues where it stopped; the case that crashed counts as a crash. Each case
counts by the first condition that applies:

crash            the process ended, or a case took more than 60 s
raw exception    an exception that is not a telens.Error
too long         more than 10 s of processor time
too much memory  the process grew more than 1 GB beyond its size before the first case
silent           other content than before without a message
told             other content and a warning
refused          an error of TELens
the same         the original content
not checked      other content of a Transformer Engine state, whose format has no checksum

The first five are failures. The same arguments create the same cases.
"""

from __future__ import annotations

import argparse
import base64
import collections
import faulthandler
import hashlib
import json
import pathlib
import random
import resource
import sys
import tempfile
import time
import warnings

import torch
from damaged_bytes import BLIND

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common import recipe as recipes
from telens.replay import dumps, found

ROOT = pathlib.Path(__file__).resolve().parents[2]
THEIR_STATES = ROOT / "tests/python/data/transformer_engine_states.json"
BAD = ("crash", "raw exception", "too long", "too much memory", "silent")
SECONDS = 10
SECONDS_UNTIL_CRASH = 60
MEGABYTES = 1024
RECIPES = {
    "none": None,
    "current": recipes.Float8CurrentScaling(),
    "mxfp8": recipes.MXFP8BlockScaling(),
    "nvfp4": recipes.NVFP4BlockScaling(),
}
ALL = ["activation", "weight", "gradient", "output", "wgrad", "dgrad"]


def damage(content: bytes, numbered: random.Random) -> bytes:
    """Return changed bytes."""
    while True:
        changed = bytearray(content)
        try:
            numbered.choice(BLIND)(changed, numbered)
        except (ValueError, IndexError):
            continue  # a file of less than a page
        if bytes(changed) != content:
            return bytes(changed)


class DumpCases:
    """GEMM dumps and tensor dumps with their operands, under several recipes."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.files = []
        for name, recipe in RECIPES.items():
            self.files += _write_dumps(folder / name, recipe)
        self._intact = {path: self.read(path) for path in self.files}

    def run(self, numbered: random.Random) -> str:
        path = numbered.choice(self.files)
        intact = path.read_bytes()
        path.write_bytes(damage(intact, numbered))
        try:
            content = self.read(path)
        finally:
            path.write_bytes(intact)
        return "the same" if content == self._intact[path] else "silent"

    @staticmethod
    def read(path: pathlib.Path) -> str:
        """Return a digest of everything that telens replay reads. Skipped data is an error here."""

        def refuse(line: str) -> None:
            raise telens.RecordError(line)

        digest = hashlib.sha256()
        for each in found.find(path, warn=refuse):
            _add_to(digest, dumps.read(each))
        return digest.hexdigest()


def _write_dumps(log_dir: pathlib.Path, recipe) -> list[pathlib.Path]:
    torch.manual_seed(1)
    layer = te.Linear(32, 32, name="fc")
    options = {"enabled": True, "tensors": ALL, "operands": True}
    options |= {"high_precision_tensor": True, "quantized_tensor": True}
    features = {"transformer_engine": {"DumpTensors": options}}
    section = {"enabled": True, "layers": {"layer_types": ["all"]}, **features}
    with debug.session({"dump": section}, log_dir=str(log_dir)):
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            out = layer(torch.randn(32, 32, requires_grad=True))
        out.sum().backward()
        debug.step()
    folder = next(log_dir.rglob("iter_000000"))
    gemms = sorted(folder.glob("*_gemm.h5"))
    return [*gemms, *(path for path in folder.glob("*_weight.h5") if recipe is not None)]


def _add_to(digest, value) -> None:
    """Add all contents of a dump, of any type."""
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype} {list(value.shape)}".encode())
        digest.update(
            value.contiguous().view(torch.uint8).numpy().tobytes()
            if value.dim()
            else repr(value.item()).encode()
        )
    elif isinstance(value, dict):
        for name in sorted(value):
            digest.update(str(name).encode())
            _add_to(digest, value[name])
    elif isinstance(value, list | tuple):
        for each in value:
            _add_to(digest, each)
    elif hasattr(value, "__dict__"):
        _add_to(digest, vars(value))
    else:
        digest.update(repr(value).encode())


class StateCases:
    """States of modules under delayed scaling, in TELens' and in Transformer Engine's format."""

    def __init__(self) -> None:
        recipe = recipes.DelayedScaling(amax_history_len=128)
        self._ours = []
        for make in (lambda: te.Linear(16, 16), lambda: te.LayerNormMLP(16, 32)):
            torch.manual_seed(1)
            layer = make()
            for _ in range(2):
                with te.autocast(recipe=recipe):
                    out = layer(torch.randn(16, 16))
                out.sum().backward()
            self._ours.append((make, layer.get_extra_state().numpy().tobytes()))
        self._theirs = [
            base64.b64decode(text)
            for name, text in json.loads(THEIR_STATES.read_text()).items()
            if name.startswith("delayed_1_")
        ]

    def run(self, numbered: random.Random) -> str:
        is_theirs = numbered.randrange(4) == 0
        if is_theirs:
            make, intact = (lambda: te.Linear(16, 16)), numbered.choice(self._theirs)
        else:
            make, intact = numbered.choice(self._ours)
        before, _ = self._load(make, intact)
        after, is_told = self._load(make, damage(intact, numbered))
        if after == before:
            return "the same"
        if is_told:
            return "told"
        return "not checked" if is_theirs else "silent"

    @staticmethod
    def _load(make, state: bytes) -> tuple[bytes, bool]:
        layer = make()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            layer.set_extra_state(torch.frombuffer(bytearray(state), dtype=torch.uint8).clone())
        return layer.get_extra_state().numpy().tobytes(), bool(told)


class Progress:
    """The counts, in a file that outlives the process."""

    def __init__(self, path: pathlib.Path | None, key: str) -> None:
        self._path, self._key = path, key
        self._all = json.loads(path.read_text()) if path is not None and path.exists() else {}
        own = self._all.get(key, {"next": 0, "running": None, "counts": {}, "bad": []})
        self.counts = collections.Counter(own["counts"])
        self.bad, self.next = own["bad"], own["next"]
        if own["running"] is not None:
            self.count(own["running"], "crash")

    def count(self, number: int, verdict: str) -> None:
        self.counts[verdict] += 1
        if verdict in BAD:
            self.bad.append([number, verdict])
        self.next = number + 1

    def save(self, running: int | None = None) -> None:
        if self._path is None:
            return
        own = {"next": self.next, "running": running, "counts": self.counts, "bad": self.bad}
        self._all[self._key] = own
        unfinished = self._path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(self._all))
        unfinished.replace(self._path)


def _peak_megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _verdict(cases, numbered: random.Random, memory: int) -> str:
    begin = time.process_time()
    faulthandler.dump_traceback_later(SECONDS_UNTIL_CRASH, exit=True)
    try:
        verdict = cases.run(numbered)
    except telens.Error:
        verdict = "refused"
    except Exception as error:  # a user would see a traceback
        print(f"  {type(error).__name__}: {error}", flush=True)
        verdict = "raw exception"
    finally:
        faulthandler.cancel_dump_traceback_later()
    if time.process_time() - begin > SECONDS:
        return "too long"
    return "too much memory" if _peak_megabytes() - memory > MEGABYTES else verdict


def campaign(name: str, cases, count: int, seed: int, progress: Progress) -> int:
    """Run the cases up to ``count``. Return the number of failures."""
    memory = _peak_megabytes()
    while progress.next < count:
        number = progress.next
        progress.save(running=number)
        verdict = _verdict(cases, random.Random(f"{seed} {name} {number}"), memory)
        progress.count(number, verdict)
        if verdict in BAD:
            print(f"{verdict}: {name} {number}", flush=True)
        if number % 100 == 99:
            print(f"{number + 1} {name}, {dict(progress.counts)}", flush=True)
    progress.save()
    total = sum(progress.counts.values())
    print(f"{total} {name}; {_peak_megabytes() - memory} MB more than before")
    for verdict, times in progress.counts.most_common():
        print(f"  {times:6} {verdict}")
    return len(progress.bad)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dumps", type=int, default=5000)
    parser.add_argument("--states", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--progress", type=pathlib.Path, help="a file to continue from")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bad = 0
    with tempfile.TemporaryDirectory(prefix="telens-dumps") as folder:
        for name, make, count in (
            ("dumps", lambda: DumpCases(pathlib.Path(folder)), options.dumps),
            ("states", StateCases, options.states),
        ):
            progress = Progress(options.progress, f"{name}, seed {options.seed}")
            if progress.next < count or progress.bad:
                bad += campaign(name, make(), count, options.seed, progress)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
