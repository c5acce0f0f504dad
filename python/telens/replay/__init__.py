"""Recomputes dumped GEMMs in FP64 and splits their errors by source; the command ``telens replay``.

``gemm_error`` requires only torch, since reproducers contain a copy of it. ``found`` finds files of
the feature DumpTensors, ``dumps`` reads them through ``checked_hdf5`` and selects this rank's rows,
``casts`` runs the core's quantizers, and ``command`` prints.
"""
