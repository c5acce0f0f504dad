"""A feature that requests statistics instead of computing them.

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
        """Enabled in multiples of ``freq`` (default: all iterations); queried again in the next
        iteration."""
        freq = config.get("freq", 1)
        return iteration % freq == 0, iteration - iteration % freq + freq

    @api_method
    def inspect_tensor(self, config, layer_name, *, tensor, statistics):
        """Called with the high-precision tensor, once per micro-batch."""
        if tensor is not None and tensor.numel() >= config.get("min_elements", 4096):
            statistics.want("excess_kurtosis", "std", "cur_amax")
