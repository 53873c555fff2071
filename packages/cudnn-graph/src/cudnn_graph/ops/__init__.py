"""Torch operators that run graphs."""
