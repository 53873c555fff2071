"""Fused grouped GEMM operations with one weight pointer per expert; their public names are reached as `cudnn.<name>`."""
