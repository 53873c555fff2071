"""The GEMM core: what to multiply (``problem``), how (``config``), in which order (``scheduler``), from where (``operands``)."""
