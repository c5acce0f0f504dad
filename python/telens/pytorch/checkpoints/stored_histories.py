"""Amax histories and scales in checkpoints that a library without support for them has loaded."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from telens import _C
from telens._names import refusal
from telens.pytorch.checkpoints.extra_state import EXTRA_STATE, WithExtraState

__all__ = ["load_fp8_state"]

_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_FILES = ("model.safetensors", "pytorch_model.bin")


def load_fp8_state(
    model: torch.nn.Module, checkpoint: str | os.PathLike | Mapping[str, Any]
) -> list[str]:
    """Restores the amax histories and scales of a model's layers, and returns the layers' names.

    For checkpoints that ``save_pretrained`` of Hugging Face's transformers wrote from a converted
    model: ``from_pretrained`` creates plain modules of torch, which ignore this state. Call

       model = AutoModelForCausalLM.from_pretrained(folder)
       te.convert(model)
       te.load_fp8_state(model, folder)

    ``checkpoint``: the folder, one of its files (.safetensors, .bin), or a state dict. Layers
    without an entry in it are unchanged. Raises UsageError if none of the layers with state in the
    checkpoint is in the model.
    """
    if not isinstance(model, torch.nn.Module):
        raise refusal("load_fp8_state", "model", "a torch.nn.Module", model)
    states = dict(states_in(checkpoint))
    owners = {
        f"{name}.{EXTRA_STATE}".lstrip("."): (name, module)
        for name, module in model.named_modules()
        if isinstance(module, WithExtraState)
    }
    found = [key for key in states if key in owners]
    if states and not found:
        raise _C.UsageError(
            f"load_fp8_state: the checkpoint has the state of {len(states)} layers, the first of "
            f"them {next(iter(states))!r}, and the model has none of these; convert it first "
            "(telens.pytorch.convert), and load into the model that was saved, not into a part"
        )
    for key in found:
        owners[key][1].set_extra_state(states[key])
    return [owners[key][0] for key in found]


def states_in(checkpoint: str | os.PathLike | Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields (key, state) for every layer of a checkpoint whose state is not empty."""
    if isinstance(checkpoint, Mapping):
        tensors: Iterator[tuple[str, Any]] = (
            (key, value) for key, value in checkpoint.items() if _is_state(key)
        )
    elif isinstance(checkpoint, str | os.PathLike):
        tensors = (
            each for path in _files_with_states(pathlib.Path(checkpoint)) for each in _read(path)
        )
    else:
        raise refusal("load_fp8_state", "checkpoint", "a path or a state dict", checkpoint)
    return ((key, state) for key, state in tensors if getattr(state, "numel", lambda: 1)() != 0)


def _is_state(key: str) -> bool:
    return key == EXTRA_STATE or key.endswith(f".{EXTRA_STATE}")


def _files_with_states(path: pathlib.Path) -> list[pathlib.Path]:
    if path.is_file():
        return [path]
    for index in _INDICES:
        if (path / index).is_file():
            files = json.loads((path / index).read_text())["weight_map"]
            return sorted({path / name for key, name in files.items() if _is_state(key)})
    for name in _FILES:
        if (path / name).is_file():
            return [path / name]
    raise _C.UsageError(
        f"load_fp8_state: {path} is not a checkpoint: expected a file, or a folder with one of "
        f"{', '.join((*_FILES, *_INDICES))}"
    )


def _read(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            for key in filter(_is_state, file.keys()):
                yield key, file.get_tensor(key)
        return
    state = _load(path)
    yield from ((key, value) for key, value in state.items() if _is_state(key))


def _load(path: pathlib.Path) -> dict[str, Any]:
    """Loads a state dict. Tensors are memory-mapped if the file format allows it."""
    options = {"map_location": "cpu", "weights_only": True}
    try:
        return torch.load(path, mmap=True, **options)
    except RuntimeError:  # written before torch 1.6, or with its format by choice
        return torch.load(path, **options)
