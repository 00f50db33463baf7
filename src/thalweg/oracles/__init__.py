"""Oracles ĝ: ways to estimate a gradient without bias."""
