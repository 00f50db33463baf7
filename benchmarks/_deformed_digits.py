"""The deformed digits of the papers, for the benchmarks."""

from papers._deformed_digits import DeformedDigits

__all__ = ["DeformedDigits"]
