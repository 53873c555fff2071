"""What the tests of a family need: poisoned outputs, error measures, and one conformance class that every GEMM fusion inherits.

`cudnn.testing.conformance` needs pytest and torch.
"""
