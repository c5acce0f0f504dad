"""Checks the wheels in an environment. Run it with the Python of the environment.

    smoke.py FOLDER [--core] [--write-values FILE]

Records a plain torch training with telens.watch, in which a weight becomes NaN, and another one
with `telens run`; the environment's `telens` reads both. Records the statistics of fixed tensors
and compares them with smoke_values.json, which a build wrote by --write-values: counts and extremes
bit for bit, sums within their rounding.
With --core, telens-core must be installed and fit torch; then also records an FP8 training with a
wrong scale.

Prints one line of JSON: versions, the number of equal statistics and, with --core, a digest of the
kernels' results, which is equal on all machines.
"""

import argparse
import hashlib
import json
import platform
import subprocess
import sys
from pathlib import Path

VALUES = Path(__file__).with_name("smoke_values.json")
STEPS = 40
FAULT = 20  # first step with the fault

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

# ---- statistics of fixed tensors

VALUES_CONFIG = """
values:
  enabled: True
  layers: {layer_types: all}
  transformer_engine:
    LogTensorStats:
      enabled: True
      tensors: [activation]
      stats: [min, max, mean, std, kurtosis, l1_norm, l2_norm, rms, numel, zeros%, cur_amax,
              dynamic_range, {max_blockwise_dynamic_range: {block_size: 32, dims: 1}}]
    LogFp8TensorStats:
      enabled: True
      tensors: [activation]
      stats: [fp8_current_scaling_underflows%, fp8_current_scaling_mse, mxfp8_underflows%,
              mxfp8_mse, fp8_block_scaling_underflows%, fp8_block_scaling_mse]
"""


def fixed_tensors():
    """Yields (layer, tensor) without random numbers and products: all values of BF16 and FP16."""
    import torch

    every = torch.arange(-(2**15), 2**15).to(torch.int16)
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        values = every.view(dtype).reshape(256, 256)
        yield f"{name}_all", values
        yield f"{name}_finite", values.nan_to_num(0.0, 1.0, -1.0)
        yield f"{name}_small", values.nan_to_num(0.0, 1.0, -1.0).clamp(-16, 16)
        yield f"{name}_zeros", torch.zeros(32, 64, dtype=dtype)
    integers = torch.arange(256 * 256, dtype=torch.float32).reshape(256, 256)
    yield "fp32_integers", integers - 2.0**15
    yield "fp32_eighths", (integers % 1021 - 510) / 8


def measured(folder):
    """Returns {"layer tensor statistic": bits of the value} as a session records them."""
    import telens
    import telens.debug as debug

    config = folder / "values.yaml"
    config.write_text(VALUES_CONFIG)
    with debug.session(config, log_dir=folder / "values"):
        for layer, values in fixed_tensors():
            debug.transformer_engine.inspect_tensor(layer, tensor_name="activation", tensor=values)
        debug.step()
    records = telens.open_run(folder / "values").records()
    names = records[["layer", "tensor", "statistic"]].astype(str).agg(" ".join, axis=1)
    bits = (float(value).hex() for value in records["value"])
    return dict(sorted(zip(names, bits, strict=True)))


# Statistics of sums, whose order depends on the instructions of the processor. Kernels add up to
# 8,192 elements in FP32, in at least 4 lanes: an error of at most 2048 x 2^-24 of the sum.
SUMS = ("kurtosis", "l1_norm", "l2_norm", "mean", "rms", "std")
SUM_BOUND = 2.0**-13


def agree(name, expected, found):
    """Returns True if two values of a statistic, as hexadecimal text, differ only by rounding."""
    values = [expected.get(name), found.get(name)]
    statistic = name.split()[-1]
    if None in values or not (statistic in SUMS or statistic.endswith("_mse")):
        return values[0] == values[1]
    a, b = map(float.fromhex, values)
    # Elements of both signs cancel in a mean.
    of_size = name.removesuffix("mean") + "rms" if statistic == "mean" else name
    return (
        a == b
        or values[0] == values[1]
        or abs(a - b) <= SUM_BOUND * abs(float.fromhex(expected[of_size]))
    )


def compare_values(folder):
    """Returns the number of compared statistics. Ends the program unless all values agree."""
    expected, found = json.loads(VALUES.read_text()), measured(folder)
    names = sorted(expected.keys() | found.keys())
    unequal = [name for name in names if not agree(name, expected, found)]
    if unequal:
        shown = [f"{name}: {found.get(name)}, not {expected.get(name)}" for name in unequal[:5]]
        sys.exit(
            f"{len(unequal)} of {len(names)} statistics differ from the build machine: {shown}"
        )
    return len(names)


# ---- trainings


def train_plain(folder):
    """Records a training of torch modules in folder/watched; one weight becomes NaN."""
    import torch

    import telens

    torch.manual_seed(1)
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(64, 256), torch.nn.GELU(), linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = telens.watch(model, log_dir=folder / "watched")
    for step in range(STEPS):
        if step == FAULT:
            model[2].weight.data[3, 5] = float("nan")
        inputs = torch.randn(32, 64)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        telens.step(loss)
    watch.stop()


CORE_CONFIG = """
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


def train_fp8(folder):
    """Records an FP8 training in folder/fp8; from FAULT on, the input scale of a layer is wrong."""
    import torch

    import telens.debug as debug
    import telens.pytorch as te
    from telens.common.recipe import DelayedScaling

    torch.manual_seed(1)
    linear = torch.nn.Linear
    model = te.convert(torch.nn.Sequential(linear(64, 256), torch.nn.GELU(), linear(256, 64)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    (folder / "fp8.yaml").write_text(CORE_CONFIG)
    debug.initialize(folder / "fp8.yaml", log_dir=folder / "fp8")
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


# ---- the command


def command(*arguments, codes=(0,)):
    program = Path(sys.executable).parent / "telens"
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode not in codes:
        sys.exit(f"telens {arguments[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def diagnose(logs, expected):
    found = command("diagnose", logs, codes=(1,))
    if expected not in found:
        sys.exit(f"telens diagnose {logs.name}: expected {expected}, found:\n{found}")


def check_core(wanted):
    """Checks that telens.pytorch is importable only with telens-core."""
    try:
        import telens.pytorch
    except ImportError as error:
        if wanted or "telens-core" not in str(error):
            raise
    else:
        if not wanted:
            sys.exit(f"telens-core is installed in {telens.pytorch.__path__}; pass --core")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--core", action="store_true", help="telens-core is installed")
    parser.add_argument("--write-values", type=Path, help="write the statistics and do no checks")
    options = parser.parse_args()
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if options.write_values is not None:
        options.write_values.write_text(json.dumps(measured(folder), indent=0) + "\n")
        return

    import torch

    import telens

    facts = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "telens": telens.__version__,
        "statistics": compare_values(folder),
    }
    check_core(options.core)
    train_plain(folder)
    last = STEPS - 1
    diagnose(folder / "watched", f"nonfinite: 2 weight, iterations {FAULT} to {last}")
    program = folder / "plain.py"
    program.write_text(PLAIN_PROGRAM)
    command("run", "--log-dir", folder / "plain", "--", sys.executable, program)
    if "cur_amax" not in command("stats", folder / "plain", "--stat", "cur_amax"):
        sys.exit("telens run recorded no statistics")
    if options.core:
        train_fp8(folder)
        diagnose(folder / "fp8", f"wrong_scale: model.2 activation, iterations {FAULT} to {last}")
        facts["digest"] = kernel_digest()
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
