"""Kernel side of the package: the shared GEMM core and its epilogues in CuTe DSL.

The only place in ``cudnn`` that imports the DSL, and nothing else in the package imports it at module top.
``gemm.problem`` and ``gemm.config`` are plain data and import nothing of it.
"""
