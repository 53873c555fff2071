"""What the operations of a mixture of experts share: their tensors, their kernels and how one is chosen, and the way from a call to a launch."""
