#!/usr/bin/env python3
"""Trains a byte-level GPT on real text, watched by a debug configuration.

    python samples/gpt.py --config debug.yaml --log-dir logs --recipe delayed
    torchrun --nproc-per-node 2 samples/gpt.py --tp 2 --sp
    torchrun --nproc-per-node 2 samples/gpt.py --cp 2

The same model, text, batches and options as the C++ sample in samples/gpt: with the same seed, both
compute the same bits.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import math
import pathlib
import struct
import sys
import time
from collections.abc import Callable

import torch
from ranks import Ranks, add_options

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

LEAST_BYTES = 65536  # less text cannot be learned from
LAST_STEPS = 50  # whose mean loss is reported
STEPS_PER_LINE = 20
BAR_WIDTH = 40
RECIPES = {
    "delayed": DelayedScaling,
    "current": Float8CurrentScaling,
    "mxfp8": MXFP8BlockScaling,
    "block": Float8BlockScaling,
    "nvfp4": NVFP4BlockScaling,
    "bf16": None,
    "fp32": None,
}


class Model(torch.nn.Module):
    """A decoder of TELens modules. Layers are named layers.<i>.<name> and head in
    configurations."""

    def __init__(
        self, layers: int, hidden: int, heads: int, max_sequence: int, ranks: Ranks | None = None
    ) -> None:
        super().__init__()
        self.ranks = ranks
        self.embedding = torch.nn.Parameter(torch.randn(256, hidden) * 0.02)
        angles = te.RotaryPositionEmbedding(hidden // heads)(max_sequence)
        self.register_buffer("angles", angles, persistent=False)
        self.layers = torch.nn.ModuleList(
            te.TransformerLayer(
                hidden,
                4 * hidden,
                heads,
                hidden_dropout=0,
                attention_dropout=0,
                layer_number=i + 1,
                fuse_qkv_params=True,
                name=f"layers.{i}",
                device="cpu",
                **(ranks.layer_options() if ranks else {}),
            )
            for i in range(layers)
        )
        for layer in self.layers if ranks else ():
            ranks.share_sequences(layer)
        self.norm = te.LayerNorm(hidden, device="cpu")
        self.head = te.Linear(hidden, 256, bias=False, name="head", device="cpu")

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Maps bytes, int64 [seq, batch], to logits [seq, batch, 256]; with --cp or --sp this
        rank's rows."""
        hidden = torch.nn.functional.embedding(data, self.embedding)
        if self.ranks:
            hidden = self.ranks.own_sequence(hidden)
        for layer in self.layers:
            hidden = layer(hidden, rotary_pos_emb=self.angles)
        return self.head(self.norm(hidden))


class Text:
    """The training text, as bytes."""

    def __init__(self, folder: str, max_bytes: int) -> None:
        self.folder = pathlib.Path(folder) if folder else find_python_library()
        text = bytearray()
        for path in sorted(p for p in self.folder.rglob("*") if p.is_file()):
            content = path.read_bytes()
            if b"\0" in content:
                continue  # no text
            text += content
            if len(text) >= max_bytes:
                break
        del text[max_bytes:]
        if len(text) < LEAST_BYTES:
            sys.exit(
                f"gpt: too little text: the text files under {self.folder} have {len(text)} bytes; "
                f"expected at least {LEAST_BYTES}"
            )
        self.data = torch.frombuffer(text, dtype=torch.uint8)

    def bigram_entropy(self) -> float:
        """Returns the entropy of the next byte given the current one, in nats."""
        pairs = self.data[:-1].long() * 256 + self.data[1:].long()
        counts = torch.bincount(pairs, minlength=256 * 256).double().view(256, 256)
        conditional = counts / counts.sum(dim=1, keepdim=True)
        return -(counts * conditional.log()).nansum().item() / len(pairs)

    def batch(
        self, seed: int, step: int, sequence: int, batch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns two int64 [seq, batch] of sequences at positions that depend only on seed and
        step."""
        places = len(self.data) - sequence
        starts = [split_mix(split_mix(seed + 1) + step * batch + i) % places for i in range(batch)]
        inputs = torch.stack([self.data[s : s + sequence] for s in starts], dim=1)
        targets = torch.stack([self.data[s + 1 : s + 1 + sequence] for s in starts], dim=1)
        return inputs.long(), targets.long()


def find_python_library() -> pathlib.Path:
    """Returns the path of Python's standard library, the default text of the C++ sample too."""
    for root in ("/usr/lib", "/usr/local/lib"):
        found = sorted(p.parent for p in pathlib.Path(root).glob("python3.*/ast.py"))
        if found:
            return found[0]
    return pathlib.Path(contextlib.__file__).parent


def split_mix(counter: int) -> int:
    """Returns well mixed bits of a counter: Sebastiano Vigna's SplitMix64."""
    mask = 2**64 - 1
    bits = counter * 0x9E3779B97F4A7C15 & mask
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & mask
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & mask
    return bits ^ (bits >> 31)


def learning_rate(peak: float, step: int, steps: int) -> float:
    """Returns the learning rate: linear warm-up over the first twentieth, then a cosine down to a
    tenth."""
    progress = (step + 1) / steps
    if progress < 0.05:
        return peak * progress / 0.05
    phase = math.pi * (progress - 0.05) / 0.95
    return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(phase)))


def device_of(options: argparse.Namespace) -> torch.device:
    """Returns the device to train on, which is also the default device of modules."""
    best = te.LayerNorm(1).weight.device
    if options.device == "cuda" and best.type != "cuda":
        has_gpu = torch.cuda.is_available()
        reason = "this build does not include CUDA kernels" if has_gpu else "torch cannot use a GPU"
        raise telens.UsageError(f"--device cuda: {reason}")
    if options.device == "auto" and options.recipe in ("mxfp8", "block", "nvfp4"):
        return torch.device("cpu")  # their GEMMs run only there
    return torch.device("cpu") if options.device == "cpu" else best


def forward_and_backward(
    model: Model, recipe: str, inputs: torch.Tensor, targets: torch.Tensor, ranks: Ranks
) -> float:
    make_recipe = RECIPES[recipe]
    with (
        torch.autocast(inputs.device.type, torch.bfloat16, enabled=recipe != "fp32"),
        te.autocast(recipe=make_recipe(), amax_reduction_group=ranks.world)
        if make_recipe
        else contextlib.nullcontext(),
    ):
        logits = model(ranks.own_batch(inputs)).float()
        targets = ranks.own_sequence(ranks.own_batch(targets))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        share = loss * ranks.share_of_loss()
    share.backward()
    ranks.add_gradients(model)
    return ranks.total_loss(share)


def show_progress(first: int, step: int, steps: int, loss: float, begin: float) -> None:
    speed = (step + 1 - first) / (time.perf_counter() - begin)
    if sys.stdout.isatty():
        full = BAR_WIDTH * (step + 1) // steps
        bar = "#" * full + "." * (BAR_WIDTH - full)
        end = "\n" if step + 1 == steps else ""
        print(f"\r[{bar}] {step + 1}/{steps}  loss {loss:.4f}  {speed:.1f} steps/s ", end=end)
    elif step % STEPS_PER_LINE == 0 or step + 1 == steps:
        print(f"step {step:5}  loss {loss:.4f}  {speed:.1f} steps/s")
    sys.stdout.flush()


def make_model(options: argparse.Namespace, ranks: Ranks | None = None) -> Model:
    """Creates the whole model, or this rank's part of it. The weights depend only on the seed."""
    sizes = (options.layers, options.hidden, options.heads, options.sequence)
    whole = Model(*sizes)
    if ranks is None or ranks.tp * ranks.cp == 1:
        return whole
    model = Model(*sizes, ranks)
    ranks.copy_own_part(model, whole)
    return model


def train(
    options: argparse.Namespace,
    make_model: Callable[[argparse.Namespace], torch.nn.Module] = make_model,
    ranks: Ranks | None = None,
) -> None:
    """Trains the result of ``make_model``, a CPU model of bytes [seq, batch].

    If there are ranks, ``make_model`` receives them.
    """
    text = Text(options.text, options.text_bytes)
    one_rank = ranks is None
    ranks = ranks or Ranks()
    if ranks.is_first:
        print(f"{len(text.data)} bytes of text from {text.folder}")
    torch.manual_seed(options.seed)
    device = device_of(options)
    # Created on the CPU, so that the weights depend only on the seed.
    model = (make_model(options) if one_rank else make_model(options, ranks)).to(device)
    adamw = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
    )
    first = 0
    if options.resume:
        state = torch.load(options.resume, map_location=device)
        model.load_state_dict(state["model"])
        adamw.load_state_dict(state["adamw"])
        first = state["steps"]
    if options.config:
        debug.initialize(options.config, log_dir=options.log_dir, init_training_step=first)
        if ranks.world:  # so that norms, embedding and gradients are compared over ranks too
            debug.infer_and_assign_layer_names(model, keep_names=True)

    losses = []
    begin = time.perf_counter()
    with contextlib.ExitStack() as files:
        loss_file = (
            files.enter_context(open(options.loss_file, "w", buffering=1))
            if options.loss_file and ranks.is_first
            else None
        )
        for step in range(first, options.steps):
            inputs, targets = text.batch(options.seed, step, options.sequence, options.batch)
            loss = forward_and_backward(
                model, options.recipe, inputs.to(device), targets.to(device), ranks
            )
            for group in adamw.param_groups:
                group["lr"] = learning_rate(options.learning_rate, step, options.steps)
            adamw.step()
            adamw.zero_grad()
            debug.step(loss)
            if loss_file:
                print(struct.pack(">f", loss).hex(), file=loss_file)
            losses.append(loss)
            if ranks.is_first:
                show_progress(first, step, options.steps, loss, begin)
            if ranks.is_first and options.save and step + 1 == (options.save_at or options.steps):
                torch.save(
                    {
                        "model": model.state_dict(),
                        "adamw": adamw.state_dict(),
                        "steps": step + 1,
                    },
                    options.save,
                )
    if options.config:
        path = debug.run_path()
        debug.end_debug()
        if ranks.is_first:
            recorded = pathlib.Path(path).is_file()
            print("recorded" if recorded else "nothing could be recorded", "in", path)
    if losses and ranks.is_first:
        report(losses[-LAST_STEPS:], text.bigram_entropy(), options)


def report(last: list[float], bigram_entropy: float, options: argparse.Namespace) -> None:
    """Prints the result; exits with an error if the requested loss was not reached."""
    mean = sum(last) / len(last)
    print(f"mean loss of the last {len(last)} steps: {mean:.4f} nats a byte")
    print(f"bigram entropy of the text:    {bigram_entropy:.4f} nats a byte")
    below, wanted = bigram_entropy - mean, options.below_bigrams
    if wanted is not None and not below >= wanted:  # a NaN is not below anything
        sys.exit(
            f"gpt: the mean loss of the last {len(last)} steps is {below:.4f} nats below the "
            f"text's bigram entropy; expected at least {wanted} (--below-bigrams): train for more "
            f"--steps, or look for what went wrong with `telens info {options.log_dir}`"
        )


class Parser(argparse.ArgumentParser):
    """Suggests the nearest option for an unknown one."""

    def parse_args(self, args: list[str] | None = None, namespace: object = None) -> object:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            options = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(name, options, 1)
            hint = f" (did you mean '{near[0]}'?)" if near else ""
            self.error(f"unknown option {name}{hint}")
        return found


def make_parser(
    description: str = "Trains a byte-level GPT of TELens modules on real text.",
) -> argparse.ArgumentParser:
    """Adds the options that every sample has."""
    parser = Parser(
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--config", default="", help="debug configuration (YAML)")
    parser.add_argument("--log-dir", default="telens_runs", help="folder of the session's records")
    parser.add_argument(
        "--recipe", default="delayed", choices=RECIPES, help="precision of the linear layers"
    )
    parser.add_argument(
        "--device",
        default="auto",
        choices=("auto", "cpu", "cuda"),
        help="auto: cuda if there is a GPU, and this build and the recipe use it",
    )
    parser.add_argument("--steps", type=int, default=300, help="training steps, in all")
    parser.add_argument("--seed", type=int, default=1, help="of weights and batches")
    parser.add_argument(
        "--loss-file", default="", help="writes the FP32 bits of each step's loss, one per line"
    )
    parser.add_argument("--text", default="", help="folder of text files; default: Python's own")
    parser.add_argument("--text-bytes", type=int, default=4 << 20, help="reads at most this much")
    parser.add_argument(
        "--below-bigrams",
        type=float,
        help="fails unless the mean loss of the last 50 steps is at least this many nats below the "
        "text's bigram entropy",
    )
    parser.add_argument("--save", default="", help="writes a checkpoint")
    parser.add_argument(
        "--save-at", type=int, default=0, help="after this many steps; 0 for the last one"
    )
    parser.add_argument("--resume", default="", help="resumes from a checkpoint")
    parser.add_argument("--layers", type=int, default=3, help="Transformer layers")
    parser.add_argument("--hidden", type=int, default=128, help="width, divisible by 16")
    parser.add_argument("--heads", type=int, default=4, help="attention heads")
    parser.add_argument("--sequence", type=int, default=128, help="bytes a sequence")
    parser.add_argument("--batch", type=int, default=16, help="sequences a step")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="peak of AdamW's")
    return parser


if __name__ == "__main__":
    try:
        parser = make_parser()
        add_options(parser)
        options = parser.parse_args()
        ranks = Ranks(options.tp, options.sp, options.dp, options.cp, options.cp_comm_type)
        if ranks.tp > 1 and (options.save or options.resume):
            raise telens.UsageError(
                "--save and --resume want one rank (--tp 1): no rank has it all"
            )
        train(options, ranks=ranks)
        ranks.finish()
    except telens.UsageError as error:
        print(f"gpt: {error}", file=sys.stderr)
        sys.exit(2)
