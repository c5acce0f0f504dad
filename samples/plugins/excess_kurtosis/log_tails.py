"""A feature that asks for statistics in place of computing them.

LogTails logs how heavy the tails of large tensors are: ``excess_kurtosis``, which
excess_kurtosis.py defines, and two statistics that TELens has.

    telens:
      LogTails:
        enabled: True
        tensors: [activation, gradient]
        min_elements: 4096
"""

from telens.debug import Registry, TEConfigAPIMapper, api_method


@Registry.register_feature(namespace="telens")
class LogTails(TEConfigAPIMapper):
    """Excess kurtosis, std and amax of tensors of ``min_elements`` elements or more."""

    @api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        """On in iterations that ``freq`` divides (default: all), and asked again in the next."""
        freq = config.get("freq", 1)
        return iteration % freq == 0, iteration - iteration % freq + freq

    @api_method
    def inspect_tensor(self, config, layer_name, *, tensor, statistics):
        """Called with the high-precision tensor, once a micro-batch."""
        if tensor is not None and tensor.numel() >= config.get("min_elements", 4096):
            statistics.want("excess_kurtosis", "std", "cur_amax")
