"""Learning rates that do not follow their schedule."""

from __future__ import annotations

import math

from ..training import Training, incident


class Scheduled(Training):
    """A cosine from the learning rate to zero, after a warm-up of 3 steps."""

    steps = 40
    warm_up = 3

    def planned(self, step: float) -> float:
        progress = min(1.0, (step + 1) / self.warm_up)
        return self.learning_rate * progress * max(0.0, 0.5 + 0.5 * math.cos(math.pi * step / 41))

    def rate(self, step: int) -> float:
        return self.planned(step)


@incident("huggingface/accelerate#963")
class SteppedByMicroBatch(Scheduled):
    """The schedule advances once per micro-batch and reaches zero too early if broken."""

    micro_batches = 2

    def planned(self, step: float) -> float:
        progress = min(1.0, (step + 1) / self.warm_up)
        return self.learning_rate * progress * max(0.0, 1 - step / 40)

    def rate(self, step: int) -> float:
        return self.planned(step * self.micro_batches if self.broken else step)


@incident("huggingface/diffusers#3954")
class SteppedByProcess(Scheduled):
    """The cosine advances four times per step if broken: zero at step 10, peak at step 20."""

    def rate(self, step: int) -> float:
        advanced = 4 * step if self.broken else step
        progress = min(1.0, (advanced + 1) / self.warm_up)
        return self.learning_rate * progress * (0.5 + 0.5 * math.cos(math.pi * advanced / 40))


class Resumed(Scheduled):
    resume_at = 20


@incident("IntelLabs/distiller#145")
class StartedAgain(Resumed):
    """The rate is divided by 10 at step 12. The resume restores the initial rate if broken."""

    def rate(self, step: int) -> float:
        decayed = step >= 12 and not (self.broken and step >= self.resume_at)
        return self.learning_rate * (0.1 if decayed else 1.0)


@incident("huggingface/nanotron#256")
class PeakOfResume(Resumed):
    """After the resume, the rate is 30 times too small if broken."""

    def rate(self, step: int) -> float:
        late = self.broken and step >= self.resume_at
        return self.planned(step) * (1 / 30 if late else 1.0)


@incident("ildoonet/pytorch-gradual-warmup-lr#27")
class OtherOptimizer(Resumed):
    """After the resume, the rate is constant if broken."""

    def rate(self, step: int) -> float:
        return self.planned(min(step, self.resume_at) if self.broken else step)


@incident("starVLA/starVLA#210")
class ReplayedBySteps(Resumed):
    """The schedule advances twice per step before the resume, and once after it, if broken."""

    micro_batches = 2

    def rate(self, step: int) -> float:
        if not self.broken:
            return self.planned(step)
        return self.planned(min(40, 2 * step)) if step < self.resume_at else self.planned(step / 2)
