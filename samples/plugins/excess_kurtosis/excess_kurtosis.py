"""A user-defined statistic in Python; excess_kurtosis.cpp is the C++ version.

transformer_engine:
  LogTensorStats:
    enabled: True
    tensors: [activation, gradient]
    stats: [std, excess_kurtosis]
"""

import torch

from telens.debug import Registry


@Registry.register_statistic("excess_kurtosis")
class ExcessKurtosis:
    """Fourth standardized moment less 3: 0 for a normal distribution, more for heavier tails."""

    # How many elements, their mean, and the sums of powers of their distances from it.
    size = 5

    def add(self, tensor):
        """Returns a tensor's sums; they stay on its device until the step."""
        x = tensor.double()
        mean = x.mean()
        distance = x - mean
        n = torch.full_like(mean, x.numel())
        return torch.stack([n, mean, *(distance.pow(power).sum() for power in (2, 3, 4))])

    def merge(self, a, b):
        """Merges the sums of two micro-batches or ranks (Pebay, SAND2008-6212, section 3)."""
        n_a, mean_a, m2_a, m3_a, m4_a = a
        n_b, mean_b, m2_b, m3_b, m4_b = b
        n = n_a + n_b
        d = (mean_b - mean_a) / n
        m4 = m4_a + m4_b + 4 * d * (n_a * m3_b - n_b * m3_a)
        m4 += 6 * d**2 * (n_a**2 * m2_b + n_b**2 * m2_a)
        m4 += d**4 * n * n_a * n_b * (n_a**2 - n_a * n_b + n_b**2)
        m3 = m3_a + m3_b + 3 * d * (n_a * m2_b - n_b * m2_a) + d**3 * n * n_a * n_b * (n_a - n_b)
        m2 = m2_a + m2_b + d**2 * n * n_a * n_b
        return torch.stack([n, mean_a + d * n_b, m2, m3, m4])

    def finish(self, sums):
        """Returns the value over the micro-batches and ranks."""
        n, _, m2, _, m4 = sums
        return n * m4 / m2**2 - 3
