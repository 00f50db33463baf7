"""Thalweg: descent with cheap unbiased gradients and steps that respect the geometry of the parameters."""

__version__ = "0.1.0.dev0"
