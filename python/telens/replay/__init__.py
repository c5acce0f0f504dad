"""Dumped GEMMs run again in FP64, their errors in parts; the command ``telens replay``.

``gemm_error`` needs torch alone, since a reproducer is a copy of it. ``dumps`` reads what the
feature DumpTensors wrote, ``casts`` asks the quantizers of the core, ``command`` prints.
"""
