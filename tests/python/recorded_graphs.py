"""Graphs on a CPU: operators are recorded as by a capture, and run again on the same memory.

As on a GPU, a capture computes nothing: what its operators wrote into memory from before is put
back, and what they have made is NaN until a replay. What reads a value on the host is an error.
Graphs of one pool share memory in the worst way: a replay leaves nothing of what later captures
have made there. Code that writes past the dispatcher is not seen.
"""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

_READS_OF_THE_HOST = ("aten._local_scalar_dense", "aten.is_nonzero", "aten.nonzero")


class RecordedGraphs:
    """Replaces ``telens.pytorch.cuda_graphs.CudaGraphs``."""

    def __init__(self):
        self.pools = []
        self.captures = []  # (pool, number of operators)
        self._by_pool = {}  # id(pool) -> its recordings, the oldest first

    def new_pool(self):
        self.pools.append(object())
        return self.pools[-1]

    @contextlib.contextmanager
    def capture(self, pool, generators):
        same_pool = self._by_pool.setdefault(id(pool), [])
        recording = _Recording()

        def replay():
            for later in same_pool[same_pool.index(recording) + 1 :]:
                later.spoil()
            recording.replay()

        with recording:
            yield replay
        recording.end()
        same_pool.append(recording)
        self.captures.append((pool, len(recording.calls)))


class _Recording(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []  # (operator, args, kwargs, tensors made, their numbers among the results)
        self._own = set()  # addresses of memory that was made inside
        self._before = {}  # address -> (tensor from before, its values)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if str(func).startswith(_READS_OF_THE_HOST):
            raise RuntimeError(f"{func} reads a value while a graph is captured")
        given = [each for each in tree_flatten((args, kwargs))[0] if _is_tensor(each)]
        for each in given if func._schema.is_mutable else ():
            if _address(each) not in self._own and _address(each) not in self._before:
                whole = each.detach().as_strided(
                    (each.untyped_storage().nbytes() // each.element_size(),), (1,), 0
                )
                self._before[_address(each)] = (whole, whole.clone())
        result = func(*args, **kwargs)
        known = {_address(each) for each in given}
        written = {id(each) for each in tree_flatten((args, kwargs))[0]}  # set_ gives it back
        leaves = tree_flatten(result)[0]
        made = [
            (number, each)
            for number, each in enumerate(leaves)
            if _is_tensor(each) and _address(each) not in known and id(each) not in written
        ]
        self._own.update(_address(each) for _, each in made)
        self.calls.append((func, args, kwargs, made))
        return result

    def end(self):
        with torch.no_grad():
            for whole, values in self._before.values():
                whole.data.copy_(values)
        self.spoil()

    def spoil(self):
        with torch.no_grad():
            for *_, made in self.calls:
                for _, each in made:
                    if each.is_floating_point():
                        each.data.fill_(float("nan"))  # .data: autograd is to count no change
                    elif each.dtype is torch.uint8:
                        each.data.fill_(255)  # as codes of FP8 it is NaN

    def replay(self):
        with torch.no_grad():
            for func, args, kwargs, made in self.calls:
                leaves = tree_flatten(func(*args, **kwargs))[0]
                for number, each in made:
                    each.data.copy_(leaves[number])


def _is_tensor(value):
    return isinstance(value, torch.Tensor) and value.numel() > 0


def _address(tensor):
    return tensor.untyped_storage().data_ptr()
