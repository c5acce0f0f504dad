"""Faults of FP8 scaling, loss scales and precision.

Faults of FP8 are planted in modules of telens.pytorch, all others in plain torch modules.
"""

from __future__ import annotations

import abc
import os
import pathlib
import sys
from typing import ClassVar

import torch

import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling

from ..training import ROOT, Training, incident

sys.path.insert(0, str(ROOT / "samples" / "faults"))


class Core(abc.ABC):
    """A training of samples/faults: a GPT of modules of telens.pytorch, recorded in each step."""

    options: ClassVar[dict] = {}

    def __init__(self, broken: bool, log_dir: pathlib.Path) -> None:
        import training

        self.log_dir = log_dir
        self.config = training.every_iteration(ROOT / "configs/flight_recorder.yaml")
        self.training = training.Training(training.Options(**self.options))
        self.broken = broken
        if broken:
            self.break_it(self.training)

    @abc.abstractmethod
    def break_it(self, training) -> None:
        """Plants the fault in a training of samples/faults."""

    def run(self) -> None:
        import training

        os.environ["TELENS_RUN_ID"] = "run"
        training.record(self.training, self.config, self.log_dir)


def before(training, step: int, do) -> None:
    """Calls do() before one step."""
    training.before_step.append(lambda t: do() if t.step == step else None)


@incident("NVIDIA/TransformerEngine#962")
class LargeProjections(Core):
    options: ClassVar[dict] = {"recipe": "delayed"}

    def break_it(self, training) -> None:
        for layer in training.model.layers:
            for name, parameter in layer.self_attention.layernorm_qkv.named_parameters():
                if parameter.dim() > 1 and "layer_norm" not in name:
                    torch.nn.init.normal_(parameter, std=1.0)


@incident("NVIDIA/TransformerEngine#982")
class WithoutFp8State(Core):
    options: ClassVar[dict] = {"recipe": "delayed", "resume_at": 20}

    def break_it(self, training) -> None:
        resume = training.resume
        training.resume = lambda with_histories: resume(with_histories=False)


def scaling_states(training):
    for module in training.model.modules():
        meta = getattr(module, "fp8_meta", None)
        if meta and "scaling_fwd" in meta:
            yield meta["scaling_fwd"]


@incident("NVIDIA/TransformerEngine#123")
class StaleInverse(Core):
    """After the resume, the outputs of one layer are 16 times too large."""

    options: ClassVar[dict] = {"recipe": "delayed", "resume_at": 20}

    def break_it(self, training) -> None:
        layer = training.model.layers[1].self_attention.proj
        layer.register_forward_hook(
            lambda module, args, output: (
                (
                    tuple(x * 16 if i == 0 else x for i, x in enumerate(output))
                    if isinstance(output, tuple)
                    else output * 16
                )
                if training.step >= 20
                else None
            )
        )


@incident("NVIDIA-NeMo/Megatron-Bridge#1730")
class WrongHistory(Core):
    """After the resume, all amax histories are 1e-30, so scales are far too large."""

    options: ClassVar[dict] = {"recipe": "delayed", "resume_at": 20}

    def break_it(self, training) -> None:
        @torch.no_grad()
        def damage() -> None:
            for state in scaling_states(training):
                state.amax_history.fill_(1e-30)
                state.scale = torch.full_like(state.scale, 448 / 1e-30)

        before(training, 20, damage)


@incident("marin-community/marin#7659")
class LastMicroBatch(Core):
    """The inputs of one layer are 30 times larger in the first of two micro-batches.

    If broken, the scale fits only the second micro-batch, and the first one is clipped.
    """

    options: ClassVar[dict] = {"recipe": "delayed_recent", "micro_batches": 2, "batch": 4}

    def __init__(self, broken: bool, log_dir: pathlib.Path) -> None:
        super().__init__(broken, log_dir)
        self.calls = 0
        layer = self.training.model.layers[1].self_attention.proj
        layer.register_forward_pre_hook(self.enlarge)

    def enlarge(self, module, args):
        self.calls += 1
        return (args[0] * 30, *args[1:]) if self.calls % 2 else None

    def break_it(self, training) -> None:
        state = training.model.layers[1].self_attention.proj

        @torch.no_grad()
        def overwrite(t) -> None:
            meta = state.fp8_meta["scaling_fwd"]
            meta.scale = torch.cat([meta.scale[:1] * 30, meta.scale[1:]])

        training.before_step.append(lambda t: overwrite(t) if t.step > 0 else None)


@incident("NVIDIA-NeMo/Megatron-Bridge#1771")
class ScalesOfAnotherGather(Core):
    """In step 1, the first 32 columns of a weight become NaN, as if their scales were NaN."""

    options: ClassVar[dict] = {"recipe": "mxfp8"}

    def break_it(self, training) -> None:
        weight = training.model.layers[1].layernorm_mlp.fc1_weight

        @torch.no_grad()
        def damage() -> None:
            weight[:, :32] = float("nan")

        before(training, 1, damage)


@incident("pytorch/pytorch#192212")
class ReadAsContiguous(Core):
    """The forward GEMM of one layer reads the transposed weight as if it were contiguous."""

    options: ClassVar[dict] = {"recipe": "current"}

    def break_it(self, training) -> None:
        from program_faults import wrong_operand

        wrong_operand("fprop", "weight", "transposed")(training, "layers.1.self_attention.proj", 0)


@incident("karpathy/minGPT#75")
class LogitsBeyondTheMask(Core):
    """The query and key weights of one layer grow by 1.5 in each step from step 8 on."""

    options: ClassVar[dict] = {"recipe": "bf16"}

    def break_it(self, training) -> None:
        layer = training.model.layers[1].self_attention.layernorm_qkv

        @torch.no_grad()
        def grow(t) -> None:
            for name, parameter in layer.named_parameters():
                if parameter.dim() > 1 and "layer_norm" not in name:
                    parameter[: 2 * parameter.size(0) // 3].mul_(1.5)

        training.before_step.append(lambda t: grow(t) if t.step >= 8 else None)


@incident("NVIDIA/TransformerEngine#1556")
class LayersNotReplaced(Training):
    """An FP8 region runs plain linear layers if broken, and converted ones in the twin."""

    def build(self) -> torch.nn.Module:
        model = super().build()
        return model if self.broken else te.convert(model)

    def watch(self):
        if self.broken:
            return super().watch()
        debug.initialize(str(ROOT / "configs/flight_recorder.yaml"), log_dir=self.log_dir)
        return Stopped()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16), te.autocast(recipe=Float8CurrentScaling()):
            return super().forward(inputs)

    def after_update(self) -> None:
        if not self.broken:
            debug.step()


class Stopped:
    def stop(self) -> None:
        debug.end_debug()


class HalfPrecision(Training):
    """FP16 autocast with a gradient scaler."""

    scale = 1024.0

    def prepare(self) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.scale)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            return super().forward(inputs)

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()

    def update(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.step)
        self.scaler.step(self.optimizer)
        self.scaler.update()


@incident("huggingface/transformers#5651")
class Fp16Overflow(HalfPrecision):
    """The outputs of one projection exceed 65504 from step 14 on if broken."""

    def prepare(self) -> None:
        super().prepare()
        if self.broken:
            self.model.layers[2].mlp.down_proj.register_forward_pre_hook(
                lambda module, args: (args[0] * 3e4 * 4,) if self.step >= 14 else None
            )

    def build(self) -> torch.nn.Module:
        model = super().build()
        for layer in model.layers:
            torch.nn.init.normal_(layer.mlp.down_proj.weight, std=0.2)
            torch.nn.init.normal_(layer.mlp.up_proj.weight, std=0.2)
        return model


@incident("ymcui/Chinese-LLaMA-Alpaca#534")
class NeverFinite(HalfPrecision):
    """The backward of one operation divides by zero from step 12 on if broken."""

    def prepare(self) -> None:
        super().prepare()
        if self.broken:
            self.model.layers[2].mlp.register_forward_hook(self.add_root)

    def add_root(self, module, args, output):
        if self.step < 12:
            return None
        root = (output[:, :1, :1] * 0).sqrt()  # its derivative at 0 is infinite
        return output + torch.nn.functional.pad(
            root, (0, output.size(2) - 1, 0, output.size(1) - 1)
        )


@incident("NVIDIA/Megatron-LM#2272")
class WeightsAreGradients(Training):
    """The gradients of step 0 overwrite the weights of the blocks if broken."""

    def before_update(self) -> None:
        super().before_update()
        if self.step == 0:
            self.buffers = [
                (p, p.grad.clone())
                for n, p in self.model.named_parameters()
                if n.startswith("layers.")
            ]

    @torch.no_grad()
    def after_update(self) -> None:
        if self.broken and self.step == 0:
            for parameter, buffer in self.buffers:
                parameter.copy_(buffer)
