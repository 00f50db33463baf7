"""Fixtures of the kernel machines, and the plain NumPy version, which tests beside it import."""

import sys
from pathlib import Path

import jax
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def compiled():
    """The names of the programs that XLA compiles during a test."""
    programs = []

    def note(event, seconds, *, fun_name="", **_):
        if event.endswith("backend_compile_duration"):
            programs.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield programs
    jax.monitoring.unregister_event_duration_listener(note)
