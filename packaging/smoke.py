"""Checks the wheels in an environment. Run it with the Python of the environment: smoke.py FOLDER.

Records an FP8 training with a planted fault and checks that the environment's `telens` finds it.
Records a plain torch program with `telens run`. Prints one line of JSON with the versions and a
digest of the kernels' results. The digest is equal on all machines.
"""

import hashlib
import json
import platform
import subprocess
import sys
from pathlib import Path

CONFIG = """
smoke:
  enabled: True
  layers: {layer_types: all}
  transformer_engine:
    LogTensorStats: {enabled: True, tensors: [activation, weight, gradient], stats: [cur_amax]}
    LogFp8TensorStats:
      enabled: True
      tensors: [activation, weight, gradient]
      stats: [underflows%, overflows%, mse, scale_inv_min, scale_inv_max]
  telens:
    ScaleHealth: {enabled: True, tensors: [activation, weight, gradient]}
"""
STEPS = 40
FAULT = 20  # first step with a wrong scale

PLAIN_PROGRAM = """
import torch
torch.manual_seed(1)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def train(folder):
    """Records a training with a wrong input scale of one layer in folder/logs."""
    import torch

    import telens.debug as debug
    import telens.pytorch as te
    from telens.common.recipe import DelayedScaling

    torch.manual_seed(1)
    linear = torch.nn.Linear
    model = te.convert(torch.nn.Sequential(linear(64, 256), torch.nn.GELU(), linear(256, 64)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    (folder / "smoke.yaml").write_text(CONFIG)
    debug.initialize(folder / "smoke.yaml", log_dir=folder / "logs")
    debug.infer_and_assign_layer_names(model)
    for step in range(STEPS):
        if step >= FAULT:
            model[2].fp8_meta["scaling_fwd"].scale[0] = 1e-2
        inputs = torch.randn(32, 64)
        with te.autocast(recipe=DelayedScaling()):
            loss = torch.nn.functional.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        debug.step(loss)
    debug.end_debug()


def kernel_digest():
    """Returns a digest of kernel results for all BF16 values. Does not run GEMMs of torch."""
    import torch

    import telens  # noqa: F401

    ops = torch.ops.telens
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).reshape(256, 256)
    finite = every.nan_to_num(0.0, 1.0, -1.0)
    small = finite.clamp(-16, 16)
    scale = torch.full([1], 2.0**-100)
    results = [ops.amax(finite), ops.hadamard_transform(small, 0xD7E8, False)]
    for element in range(2):  # E4M3, E5M2
        results += [
            ops.quantize_fp8(every, scale, None, element),
            *ops.quantize_mxfp8(finite, element, 0, False, True, True),
            *ops.quantize_fp8_blocks(finite, element, True, True, 0.0, True, True),
            ops.statistics(every, [scale], [element]),
        ]
    results += ops.quantize_nvfp4(finite, True, None, None, True, True)
    results += [ops.activation_forward(small, name) for name in ("gelu", "silu", "relu")]
    digest = hashlib.sha256()
    for each in results:
        digest.update(each.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def command(*arguments, codes=(0,)):
    program = Path(sys.executable).parent / "telens"
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode not in codes:
        sys.exit(f"telens {arguments[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def main():
    folder = Path(sys.argv[1])
    train(folder)
    found = command("diagnose", folder / "logs", codes=(1,))
    expected = f"wrong_scale: model.2 activation, iterations {FAULT} to {STEPS - 1}"
    if expected not in found:
        sys.exit(f"telens diagnose: expected {expected}, found:\n{found}")

    program = folder / "plain.py"
    program.write_text(PLAIN_PROGRAM)
    command("run", "--log-dir", folder / "plain", "--", sys.executable, program)
    if "cur_amax" not in command("stats", folder / "plain", "--stat", "cur_amax"):
        sys.exit("telens run recorded no statistics")

    import torch

    import telens

    facts = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "telens": telens.__version__,
        "digest": kernel_digest(),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
