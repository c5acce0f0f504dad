"""A simulated training with the statistics that a flight recorder would write."""

import math
import random

STEPS = 30
LAYERS = ["layers.0.fc1", "layers.0.fc2", "layers.1.fc1", "layers.1.fc2"]


class Training:
    """The records of a healthy run; tests change some of the values."""

    def __init__(self, seed=1):
        noise = random.Random(seed)
        self.values = {}
        self.losses = [5 - 0.05 * step + 0.05 * noise.gauss(0, 1) for step in range(STEPS)]
        for step in range(STEPS):
            for number, layer in enumerate(LAYERS):
                for tensor, size in (("weight", 0.1), ("activation", 1.0), ("gradient", 1e-3)):
                    wobble = 1e-3 if tensor == "weight" else 0.1
                    # Weights change little from step to step.
                    rms = size * (1 + 0.1 * number) * (1 + wobble * noise.gauss(0, 1))
                    self.put(step, layer, tensor, rms)

    def put(self, step, layer, tensor, rms, crest=4.0):
        elements = 4096
        self.values[step, layer, tensor, "l2_norm"] = rms * math.sqrt(elements)
        self.values[step, layer, tensor, "numel"] = elements
        self.values[step, layer, tensor, "cur_amax"] = rms * crest
        self.values[step, layer, tensor, "mean"] = 0.01 * rms
        self.values[step, layer, tensor, "std"] = rms
        self.values[step, layer, tensor, "nonfinite"] = 0

    def scale(self, layer, tensor, first, factor, last=STEPS - 1):
        for step in range(first, last + 1):
            for statistic in ("l2_norm", "cur_amax", "mean", "std"):
                self.values[step, layer, tensor, statistic] *= factor

    def follow_with_scales(
        self, layer, tensor, held_from=STEPS, wrong_from=STEPS, bits=0, margin=0
    ):
        """Delayed scaling: the scale of the amax before, constant from `held_from` on, or wrong."""
        stands_for = None
        for step in range(1, STEPS):
            amax = math.log2(self.values[step, layer, tensor, "cur_amax"])
            before = math.log2(self.values[step - 1, layer, tensor, "cur_amax"])
            new = stands_for if step >= held_from else before
            new += bits if step >= wrong_from else 0
            staleness = amax - new
            for statistic, value in (
                ("scale_staleness", staleness),
                ("scale_headroom", margin - staleness),
                ("scale_jump", 0 if stands_for is None else stands_for - new),
                ("stale_saturated%", 1.0 if staleness > margin else 0.0),
                ("scale_age", 0),
            ):
                self.values[step, layer, tensor, statistic] = value
            stands_for = new

    def write(self, lines, log_dir):
        for (step, layer, tensor, statistic), value in self.values.items():
            lines.record(step, layer, tensor, statistic, value)
        for step, loss in enumerate(self.losses):
            lines.scalar(step, "loss", loss)
        return lines.write(log_dir)


def where(finding):
    return finding["cause"], finding["layer"], finding["tensor"], finding["first_iteration"]
