"""Dumped GEMMs run again in FP64, their errors in parts; the command ``telens replay``.

``gemm_error`` needs torch alone, since a reproducer is a copy of it. ``found`` looks for what the
feature DumpTensors wrote, ``dumps`` reads it by ``checked_hdf5``, ``own_rows`` cuts what ranks have
joined, ``casts`` asks the quantizers of the core, ``command`` prints.
"""
