"""MyFeature: logs how many percent of a tensor's elements are larger than a threshold.

Replace what it measures by what you want to know; docs/plugins.md explains the parts.
"""

from telens.debug import MetricLogger, Registry, TEConfigAPIMapper, api_method


@Registry.register_feature(namespace="telens")
class MyFeature(TEConfigAPIMapper):
    """Percentage of elements beyond a threshold.

    telens:
      MyFeature:
        enabled: True
        tensors: [activation]
        threshold: 2.5
    """

    @api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        """On in iterations that ``freq`` divides (default: all), and asked again in the next."""
        freq = config.get("freq", 1)
        return iteration % freq == 0, iteration - iteration % freq + freq

    @api_method
    def inspect_tensor(self, config, layer_name, *, tensor_name, tensor, iteration):
        """Called once a micro-batch for each selected tensor; it must not change the tensor."""
        if tensor is None or tensor.numel() == 0:
            return
        beyond = (tensor.abs() > config.get("threshold", 1.0)).sum().item()
        MetricLogger.log_scalar(
            f"{layer_name}_{tensor_name}_beyond%", 100 * beyond / tensor.numel(), iteration
        )
