"""Feed-forward layers with gated activations: `cudnn.gemm.ops.swiglu_mlp`, `cudnn.gemm.ops.situ_mlp` and `cudnn.torch.SwigluMLP`."""
