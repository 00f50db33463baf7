"""Tests and doctests run in float64 and treat warnings as errors; what must work in float32 says so itself."""

import os
import shutil
import tempfile

import jax
import pytest

jax.config.update("jax_enable_x64", True)


def pytest_configure(config):
    """Compile a program once for all workers and for all tests that write it again: a fifth of the time."""
    first = not hasattr(config, "workerinput")
    if first and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        # Workers and the processes that tests start inherit it.
        config.programs = os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="thalweg-tests-")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def pytest_unconfigure(config):
    """Throw the compiled programs away."""
    if hasattr(config, "programs"):
        shutil.rmtree(config.programs, ignore_errors=True)


def pytest_collection_modifyitems(config, items):
    """Skip what needs the shared data sets where the environment does not say where they are."""
    if os.environ.get("THALWEG_DATA"):
        return
    skip = pytest.mark.skip(reason="set THALWEG_DATA to the folder of data sets")
    for item in items:
        if "shared_data" in item.keywords:
            item.add_marker(skip)
