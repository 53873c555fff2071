"""Fused grouped GEMM operations over experts packed in one buffer; their public names are reached as `cudnn.<name>`."""
