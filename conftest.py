"""Tests and doctests run in float64 and treat warnings as errors; what must work in float32 says so itself."""

import os

import jax
import pytest

jax.config.update("jax_enable_x64", True)


def pytest_collection_modifyitems(config, items):
    """Skip what needs the shared data sets where the environment does not say where they are."""
    if os.environ.get("THALWEG_DATA"):
        return
    skip = pytest.mark.skip(reason="set THALWEG_DATA to the folder of data sets")
    for item in items:
        if "shared_data" in item.keywords:
            item.add_marker(skip)
