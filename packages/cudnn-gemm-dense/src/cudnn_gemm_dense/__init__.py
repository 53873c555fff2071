"""Fused dense GEMM operations. Their public names are reached as `cudnn.<name>`; see `cudnn_gemm_dense._family`."""
