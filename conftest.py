"""Tests and doctests run in float64, strictly: warnings are errors, and nothing is promoted in silence.

What must work in float32 says so itself.
"""

import ctypes
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

_QUICK = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_cpu_use_fusion_emitters=false",
)


def _compile_quickly() -> None:
    """Let XLA compile fast rather than well: most of a test's time is compiling, and a flag it does not know is fatal.

    Later releases know fewer of them. Workers inherit the environment, so the question is asked once.
    """
    if "XLA_FLAGS" in os.environ:
        return
    for known in (_QUICK, _QUICK[:2], _QUICK[:1], ()):
        trial = {**os.environ, "XLA_FLAGS": " ".join(known)}
        asked = subprocess.run([sys.executable, "-c", "import jax; jax.devices()"], env=trial, capture_output=True)
        if asked.returncode == 0:
            break
    os.environ["XLA_FLAGS"] = trial["XLA_FLAGS"]


_compile_quickly()
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of small matrices more threads wait for one another
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it, and tests send it

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_traceback_in_locations_limit", 0)  # a tenth of the time of lowering, for dumps nobody reads


gc.set_threshold(100_000)  # with Python's 700 the collector looks at traced programs all the time


def _resident() -> float:
    """GiB of memory in use; 0 where the system does not tell."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 / 2**30 if status.exists() else 0.0


def pytest_runtest_teardown(item, nextitem):
    """Forget compiled programs between files once they take up much memory: a worker stays below 3 GB.

    Few are kept gladly: Python's collector looks at all that is kept.
    """
    if (nextitem is None or nextitem.path != item.path) and _resident() > 2.2:
        jax.clear_caches()
        gc.collect()
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)  # glibc's, which else keeps what is free


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave the pages of the guide to the slow tests; skip what needs data sets that are not here."""
    for item in items:
        if item.path.parent.name == "docs":
            item.add_marker(pytest.mark.slow)
    _skip_without_data(items)


def _skip_without_data(items):
    if os.environ.get("THALWEG_DATA"):
        return
    skip = pytest.mark.skip(reason="set THALWEG_DATA to the folder of data sets")
    for item in items:
        if "shared_data" in item.keywords:
            item.add_marker(skip)
