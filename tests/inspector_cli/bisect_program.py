"""Stands for a training: succeeds if its configuration keeps the planted layers or GEMMs in high
precision.

bisect_program.py PLANT [LOG], PLANT a JSON object:
  needs       names of layers, or [layer, gemm]: all of them have to be in high precision
  any_of      likewise: one of them does
  upset_by    name of a layer that has to be in low precision, unless the layer `unless` is high
  hang        seconds that a failing run lasts
  losses      by "passed" and "failed": what WRITE_LINES (the path of that program) writes into
              TELENS_LOG_DIR, and the exit code is 0
LOG gets a line a run.
"""

import json
import os
import subprocess
import sys
import time

GEMMS = ("fprop", "dgrad", "wgrad")


def in_high_precision(text):
    """{(layer, gemm)} of the sections that telens bisect writes."""
    high, layers = set(), []
    for line in text.splitlines():
        if not line.startswith(" "):
            layers = []
        elif line.startswith("      - "):
            layers.append(json.loads(line[8:]))
        elif "DisableFP8" in line:
            gemms = [gemm for gemm in GEMMS if gemm in line] or GEMMS
            high |= {(layer, gemm) for layer in layers for gemm in gemms}
    return high


def has(high, wanted):
    layer, gemms = (wanted, GEMMS) if isinstance(wanted, str) else (wanted[0], wanted[1:])
    return all((layer, gemm) in high for gemm in gemms)


plant = json.loads(sys.argv[1])
with open(os.environ["TELENS_CONFIG"]) as config:
    high = in_high_precision(config.read())
passed = all(has(high, each) for each in plant.get("needs", []))
if "any_of" in plant:
    passed = passed and any(has(high, each) for each in plant["any_of"])
if "upset_by" in plant and has(high, plant["upset_by"]):
    passed = passed and has(high, plant["unless"])
if len(sys.argv) > 2:
    with open(sys.argv[2], "a") as log:
        log.write(f"{len(high)} {passed}\n")
if not passed:
    time.sleep(plant.get("hang", 0))
if "losses" in plant:
    losses = plant["losses"]["passed" if passed else "failed"]
    lines = "\n".join(f"scalar\t{i}\tloss\t{loss}" for i, loss in enumerate(losses))
    subprocess.run(
        [os.environ["WRITE_LINES"], os.environ["TELENS_LOG_DIR"]],
        input=lines,
        text=True,
        check=True,
    )
    sys.exit(0)
sys.exit(0 if passed else 3)
