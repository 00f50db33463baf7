"""The deformed digits of the experiments, for the benchmarks."""

from thalweg.experiments._deformed_digits import DeformedDigits

__all__ = ["DeformedDigits"]
