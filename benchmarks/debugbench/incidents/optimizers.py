"""Wrong optimizer updates and wrong gradient clipping."""

from __future__ import annotations

import torch

from ..training import Training, incident


@incident("NVIDIA/Megatron-LM#5974")
class CountedEmptyStep(Training):
    """A step with zero gradients creates the optimizer state, and is counted if broken."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=self.learning_rate)

    def prepare(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for state in self.optimizer.state.values():
            if not self.broken:
                state["step"].zero_()


@incident("unslothai/unsloth-zoo#962")
class Int8SecondMoment(Training):
    """The second moment is rounded to 8 bits, with one scale per 64 elements, if broken."""

    warm_up = 1

    def after_update(self) -> None:
        if not self.broken:
            return
        for state in self.optimizer.state.values():
            square = state["exp_avg_sq"]
            if square.numel() % 64:
                continue
            groups = square.view(-1, 64)
            low = groups.amin(1, keepdim=True)
            step = (groups.amax(1, keepdim=True) - low).clamp_min(1e-30) / 255
            groups.copy_(((groups - low) / step).round() * step + low * (low > step))


@incident("Lightning-AI/pytorch-lightning#9330")
class ClippedBeforeUnscaling(Training):
    """Gradients are clipped to 1 before the loss scale of 65536 is divided out if broken."""

    scale = 65536.0
    limit = 1.0

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.3, momentum=0.9)

    def rate(self, step: int) -> float:
        return 0.3

    def prepare(self) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.scale)

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()

    def before_update(self) -> None:
        if not self.broken:
            self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.limit)

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


@incident("paiml/entrenar#311")
class ClippedBySquare(Training):
    """The gradient is multiplied by limit / norm**2 if broken, by limit / norm in the twin."""

    limit = 1.0

    def backward(self, loss: torch.Tensor) -> None:
        (20 * loss).backward()  # norms near 20

    def before_update(self) -> None:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))
        if norm > self.limit:
            divisor = norm * norm if self.broken else norm
            for gradient in gradients:
                gradient.mul_(self.limit / divisor)
