"""samples/llama.py trains in FP8 and can be watched."""

import argparse
import struct
import subprocess
import sys

import pytest
import torch
from small_models import CONFIG, ROOT, SMALL, mean_loss, run_sample

import telens


def test_it_learns_in_fp8_and_is_recorded(tmp_path):
    (tmp_path / "debug.yaml").write_text(CONFIG)
    steps = ("--steps", "40", "--recipe", "delayed", "--sample", "8")
    done = run_sample("llama.py", tmp_path, *SMALL, *steps, "--config", "debug.yaml")
    assert done.returncode == 0, done.stderr
    assert mean_loss(done.stdout) < 4.5  # all bytes alike: 5.55
    rows = telens.open_run(tmp_path / "telens_runs").records(tensor="activation")
    assert sorted(set(rows["iteration"])) == [*range(40)]
    assert "layers.0.layernorm_mlp.fc1" in set(rows["layer"])


def recomputed(model, count: int) -> bytes:
    """The text if each byte is drawn after a forward of all bytes before it."""
    generator = torch.Generator().manual_seed(1)
    written = [ord("\n")]
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor(written)[:, None])[-1, 0]
            written.append(torch.multinomial(logits.softmax(0), 1, generator=generator).item())
    return bytes(written[1:])


@pytest.mark.parametrize("qk_norm", ["none", "rms"])
def test_text_generated_with_caches_matches_recomputation(monkeypatch, qk_norm):
    monkeypatch.syspath_prepend(ROOT / "samples")
    import llama

    torch.manual_seed(1)
    options = argparse.Namespace(
        hidden=32, heads=4, groups=2, layers=2, sequence=16, norm="rms", activation="swiglu",
        rotary_base=10000.0, qk_norm=qk_norm,
    )  # fmt: skip
    model = llama.Llama(options)
    with torch.no_grad():
        for parameter in model.parameters():  # so that earlier bytes matter
            parameter.mul_(8)
    calls = []
    model.layers[0].register_forward_hook(lambda layer, args, out: calls.append(out.size(0)))
    text = llama.sample(model, 40)
    assert text[:15] == recomputed(model, 15)
    # Each byte once, and half of the longest text when the caches are full.
    assert calls[:40] == [1] * 16 + [8] + [1] * 8 + [8] + [1] * 8 + [8] + [1] * 5
    assert len(text) == 40


def test_losses_that_earlier_calls_left_are_put_side_by_side(tmp_path):
    for recipe in ("bf16", "delayed", "current", "mxfp8", "block", "nvfp4"):
        for seed in (1, 2, 3):
            # FP8 runs end 50 % above BF16 runs; each begins at twice its final loss.
            level = 2.0 if recipe == "bf16" else 3.0
            losses = [2 * level] * 10 + [level] * 50
            text = "".join(struct.pack(">f", loss).hex() + "\n" for loss in losses)
            (tmp_path / f"{recipe}-{seed}-60").write_text(text)
    script = ROOT / "samples/llama_losses.py"
    command = [sys.executable, script, "--steps", "60", "--folder", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = done.stdout.splitlines()[2:]
    assert rows[0] == "| bf16 | 2.000 | 2.000 | 2.000 | |"
    assert rows[1:] == [
        f"| {recipe} | 3.000 | 3.000 | 3.000 | +50.0, +50.0, +50.0 % |"
        for recipe in ("delayed", "current", "mxfp8", "block", "nvfp4")
    ]
