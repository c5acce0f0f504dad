"""Names of expert parallelism over NCCL (``transformer_engine.pytorch.ep``) and of grouped tensors,
which are missing."""

from typing import Any

from telens.pytorch.compat.missing import missing_class, missing_function

__all__ = [
    "EpBuffer",
    "GroupedTensor",
    "ep_bootstrap",
    "ep_combine",
    "ep_dispatch",
    "ep_finalize",
    "is_ep_bootstrapped",
    "is_symm_backed",
    "symm_mem_alloc",
]

_PATH = "transformer_engine.pytorch.ep"
_ADVICE = "use telens.pytorch.MoEDispatcher, or moe_permute and torch's all_to_all_single"

# Whether ``ep_bootstrap`` has run: never.
_BOOTSTRAPPED = False

GroupedTensor = missing_class(
    "transformer_engine.pytorch.tensor.grouped_tensor.GroupedTensor",
    "te.GroupedLinear keeps one tensor for each GEMM",
)
EpBuffer = missing_class(f"{_PATH}.EpBuffer", _ADVICE)
ep_bootstrap = missing_function(f"{_PATH}.ep_bootstrap", _ADVICE)
ep_combine = missing_function(f"{_PATH}.ep_combine", _ADVICE)
ep_dispatch = missing_function(f"{_PATH}.ep_dispatch", _ADVICE)
symm_mem_alloc = missing_function(f"{_PATH}.symm_mem_alloc", _ADVICE)


def ep_finalize() -> None:
    """Does nothing: nothing was set up."""


def is_ep_bootstrapped() -> bool:
    """Returns False: ``ep_bootstrap`` is missing."""
    return False


def is_symm_backed(t: Any) -> bool:
    """Returns False: tensors cannot be in the memory of ``symm_mem_alloc``, which is missing."""
    return False
