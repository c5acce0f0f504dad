"""A user-defined feature in Python; log_outliers.cpp is the C++ version.

LogOutliers logs the percentage of a tensor's elements that are larger than ``factor`` times its
root mean square. A tensor's single scale must cover its outliers, at the cost of the other
elements.

    telens:
      LogOutliers:
        enabled: True
        tensors: [activation, gradient]
        factor: 6
"""

from telens.debug import MetricLogger, Registry, TEConfigAPIMapper, api_method


@Registry.register_feature(namespace="telens")
class LogOutliers(TEConfigAPIMapper):
    """Percentage of elements far beyond the root mean square: |x| > factor * rms(x)."""

    @api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        """Enabled in multiples of ``freq`` (default: all iterations); queried again in the next
        iteration."""
        freq = config.get("freq", 1)
        return iteration % freq == 0, iteration - iteration % freq + freq

    @api_method
    def inspect_tensor(self, config, layer_name, *, tensor_name, tensor, iteration):
        """Called with the high-precision tensor, once per micro-batch."""
        if tensor is None or tensor.numel() == 0:
            return
        magnitude = tensor.float().abs()
        limit = magnitude.square().mean().sqrt() * config.get("factor", 6)
        percentage = 100 * (magnitude > limit).sum().item() / tensor.numel()
        MetricLogger.log_scalar(f"{layer_name}_{tensor_name}_outliers%", percentage, iteration)
