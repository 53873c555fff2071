"""The one version of all five distributions."""

__version__ = "0.1.0"
