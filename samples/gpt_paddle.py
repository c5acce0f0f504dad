#!/usr/bin/env python3
"""Trains a byte-level GPT of telens.paddle's layers on real text, watched by a debug configuration.

    python samples/gpt_paddle.py --config debug.yaml --log-dir logs --recipe delayed

Text, batches, sizes, schedule and options match samples/gpt.py. Parameters are FP32, on the CPU,
and initialized by Paddle.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import struct
import sys
import time

import paddle
import paddle.nn.functional as F
from gpt import (
    LAST_STEPS,
    RECIPES,
    Text,
    learning_rate,
    make_parser,
    report,
    show_progress,
)

import telens
import telens.debug as debug
import telens.paddle as te

# Standard deviations of initial weights, as in samples/gpt.py and telens.pytorch.
EMBEDDING_DEVIATION = 0.02
DEVIATION = 0.023


class Model(paddle.nn.Layer):
    """A decoder of TELens layers, which are named model.layers.<i>.<name> and model.head."""

    def __init__(self, layers: int, hidden: int, heads: int, max_sequence: int) -> None:
        super().__init__()
        normal = paddle.ParamAttr(initializer=paddle.nn.initializer.Normal(std=DEVIATION))
        first = paddle.ParamAttr(initializer=paddle.nn.initializer.Normal(std=EMBEDDING_DEVIATION))
        self.embedding = paddle.nn.Embedding(256, hidden, weight_attr=first)
        self.rotary = te.RotaryPositionEmbedding(hidden // heads, max_sequence)
        self.layers = paddle.nn.LayerList(
            te.TransformerLayer(
                hidden,
                4 * hidden,
                heads,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                weight_attr=normal,
            )
            for _ in range(layers)
        )
        self.norm = te.LayerNorm(hidden)
        self.head = te.Linear(hidden, 256, weight_attr=normal, bias_attr=False)

    def forward(self, data: paddle.Tensor) -> paddle.Tensor:
        """Maps bytes, int64 [batch, seq], to logits [batch, seq, 256]."""
        hidden = self.embedding(data)
        angles = self.rotary(data.shape[1])
        for layer in self.layers:
            hidden = layer(hidden, rotary_pos_emb=angles)
        return self.head(self.norm(hidden))


def batch_of(text: Text, options: argparse.Namespace, step: int) -> list[paddle.Tensor]:
    """Returns inputs and targets, int64 [batch, seq]."""
    found = text.batch(options.seed, step, options.sequence, options.batch)
    return [paddle.to_tensor(each.t().numpy()) for each in found]


def forward_and_backward(model: Model, recipe: str, inputs, targets) -> float:
    make_recipe = RECIPES[recipe]
    region = te.fp8_autocast(
        enabled=make_recipe is not None, fp8_recipe=make_recipe() if make_recipe else None
    )
    with region:
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    return float(loss)


def train(options: argparse.Namespace) -> None:
    if options.device == "cuda" or options.recipe == "bf16":
        raise telens.UsageError("this sample runs on the CPU, in FP32 where not in low precision")
    text = Text(options.text, options.text_bytes)
    print(f"{len(text.data)} bytes of text from {text.folder}")
    paddle.seed(options.seed)
    model = Model(options.layers, options.hidden, options.heads, options.sequence)
    adamw = paddle.optimizer.AdamW(
        options.learning_rate,
        parameters=model.parameters(),
        beta1=0.9,
        beta2=0.95,
        weight_decay=0.1,
    )
    first = 0
    if options.resume:
        state = paddle.load(options.resume)
        model.set_state_dict(state["model"])
        adamw.set_state_dict(state["adamw"])
        first = state["steps"]
    if options.config:
        debug.initialize(options.config, log_dir=options.log_dir, init_training_step=first)
        debug.infer_and_assign_layer_names(model)

    losses = []
    begin = time.perf_counter()
    with contextlib.ExitStack() as files:
        loss_file = (
            files.enter_context(open(options.loss_file, "w", buffering=1))
            if options.loss_file
            else None
        )
        for step in range(first, options.steps):
            loss = forward_and_backward(model, options.recipe, *batch_of(text, options, step))
            adamw.set_lr(learning_rate(options.learning_rate, step, options.steps))
            adamw.step()
            adamw.clear_grad()
            debug.step(loss)
            if loss_file:
                print(struct.pack(">f", loss).hex(), file=loss_file)
            losses.append(loss)
            show_progress(first, step, options.steps, loss, begin)
            if options.save and step + 1 == (options.save_at or options.steps):
                state = {"model": model.state_dict(), "adamw": adamw.state_dict()}
                paddle.save(state | {"steps": step + 1}, options.save)
    if options.config:
        path = debug.run_path()
        debug.end_debug()
        recorded = pathlib.Path(path).is_file()
        print("recorded" if recorded else "nothing could be recorded", "in", path)
    if losses:
        report(losses[-LAST_STEPS:], text.bigram_entropy(), options)


def main() -> None:
    parser = make_parser("Trains a byte-level GPT of telens.paddle's layers on real text.")
    train(parser.parse_args())


if __name__ == "__main__":
    try:
        main()
    except telens.UsageError as error:
        print(f"gpt_paddle: {error}", file=sys.stderr)
        sys.exit(2)
