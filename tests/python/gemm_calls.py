"""Observes the arguments with which products of quantized operands are called."""

from torch.utils._python_dispatch import TorchDispatchMode


class GemmCalls(TorchDispatchMode):
    """While active, notes what telens::gemm and telens::gemm_accumulate get for one argument."""

    def __init__(self, argument: str):
        super().__init__()
        self.argument = argument
        self.values = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._schema.name in ("telens::gemm", "telens::gemm_accumulate"):
            arguments = func._schema.arguments
            names = [argument.name for argument in arguments]
            # Torch omits arguments that have their default.
            default = arguments[names.index(self.argument)].default_value
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            self.values.append(given.get(self.argument, default))
        return func(*args, **kwargs)
