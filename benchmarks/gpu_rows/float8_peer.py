"""torchao's float8 training of a torch module: tensorwise scaling, compiled."""

import torch

from gpu_rows.bench import Bench
from gpu_rows.row import CannotRun


def to_float8(bench: Bench, module: torch.nn.Module) -> torch.nn.Module:
    """The module with torchao's Linears for torch's, compiled as torchao asks for."""
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise CannotRun(f"torchao cannot be imported: {error}") from error
    # The default scales per tensor, with the present amax. A CPU has no FP8 products to compile to.
    config = Float8LinearConfig(emulate=bench.rehearse)
    # A module that is itself a Linear is not changed but replaced.
    module = convert_to_float8_training(module, config=config)
    if not any(type(part).__name__ == "Float8Linear" for part in module.modules()):
        raise CannotRun("torchao replaced none of the module's Linears by its own")
    return bench.compiled(module)
