"""MyFeature: logs the percentage of a tensor's elements that are larger than a threshold.

Replace the measured quantity with your own. docs/plugins.md explains the parts.
"""

from telens.debug import (
    SCHEDULE,
    MetricLogger,
    Parameter,
    Registry,
    TEConfigAPIMapper,
    api_method,
    next_enabled_iter,
)


@Registry.register_feature(
    namespace="telens",
    parameters=[Parameter("threshold", float, default=1.0, doc="beyond it counts"), *SCHEDULE],
)
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
        """Enabled in the iterations of the schedule; queried again in the next of them."""
        return next_enabled_iter(
            config["start_step"],
            config["end_step"],
            config["start_end_list"],
            config["freq"],
            iteration,
        )

    @api_method
    def inspect_tensor(self, config, layer_name, *, tensor_name, tensor, iteration):
        """Called once per micro-batch for each selected tensor. Must not change the tensor."""
        if tensor is None or tensor.numel() == 0:
            return
        beyond = (tensor.abs() > config["threshold"]).sum().item()
        MetricLogger.log_scalar(
            f"{layer_name}_{tensor_name}_beyond%", 100 * beyond / tensor.numel(), iteration
        )
