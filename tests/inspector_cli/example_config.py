"""An example configuration and the layers of a model to which it applies."""

CONFIG = """\
watch:
  enabled: True
  layers:
    layer_types: [fc1, qkv]
    layer_numbers: 0-1
  transformer_engine:
    LogTensorStats: {enabled: True, tensors: [gradient, activation], stats: [min, max], freq: 10}
    DisableFP8GEMM: {enabled: True, gemms: [wgrad], start_end_list: [[0, 4], [20, -1]]}
"""
LAYERS = "# of a small model\nlayers.0.fc1\n\nlayers.1.fc1\nlayers.1.fc2\nlayers.2.fc1\n"
