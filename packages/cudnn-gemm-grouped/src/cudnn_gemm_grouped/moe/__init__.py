"""Layers of experts with gradients: the operations, their modules, and the interface of transformers."""
