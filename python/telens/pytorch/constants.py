"""Names of data types where scripts for Transformer Engine import them from."""

from telens._C import DType

__all__ = ["DType"]
