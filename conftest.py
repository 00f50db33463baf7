"""Tests and doctests run in float64, strictly: warnings are errors, and nothing is promoted in silence.

What must work in float32 says so itself.
"""

import os
import subprocess
import sys

_QUICK = (
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 --xla_cpu_use_fusion_emitters=false"
)


def _compile_quickly() -> None:
    """Let XLA compile fast rather than well: most of a test's time is compiling, and a flag it does not know is fatal.

    Workers inherit the environment, so the question is asked once.
    """
    if "XLA_FLAGS" in os.environ:
        return
    trial = {**os.environ, "XLA_FLAGS": _QUICK}
    asked = subprocess.run([sys.executable, "-c", "import jax; jax.devices()"], env=trial, capture_output=True)
    os.environ["XLA_FLAGS"] = _QUICK if asked.returncode == 0 else ""


_compile_quickly()

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_collection_modifyitems(config, items):
    """Skip what needs the shared data sets where the environment does not say where they are."""
    if os.environ.get("THALWEG_DATA"):
        return
    skip = pytest.mark.skip(reason="set THALWEG_DATA to the folder of data sets")
    for item in items:
        if "shared_data" in item.keywords:
            item.add_marker(skip)
