"""Reads the parts in which a quantized tensor is stored."""

import torch


def stored_tensors(storage) -> dict[str, torch.Tensor]:
    found = {name: getattr(storage, name) for name in dir(storage) if not name.startswith("_")}
    return {name: each for name, each in found.items() if isinstance(each, torch.Tensor)}
