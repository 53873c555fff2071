"""What products of block-scaled operands have in common: the kernels in front of them, and how they are measured."""
