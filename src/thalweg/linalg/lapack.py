"""LAPACK without the lock of Python's interpreter, which SciPy's wrappers hold: threads that factorise run at once."""

import ctypes
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.linalg import cython_lapack

from thalweg.threads import ahead

QUICK_ROWS = 1000
"""Rows up to which a routine ends in tens of milliseconds. Python hears of Ctrl-C when a call ends: one of more rows is
left to another thread, for which an interrupt does not wait."""


def call(routine: str, *arguments: Any) -> bool:
    """Call a routine on letters, whole numbers and arrays in Fortran's order, some of which it overwrites.

    Arrays are all of float32 or all of float64, each followed by the number of its rows. Returns whether the routine
    could do its work.

    Examples
    --------
    >>> lower = np.array([[4.0, 0.0], [2.0, 5.0]], order="F")
    >>> call("potrf", b"L", 2, lower, 2), lower.tolist()
    (True, [[2.0, 0.0], [1.0, 2.0]])
    """
    arrays = [(one, rows) for one, rows in pairwise(arguments) if isinstance(one, np.ndarray)]
    dtype, failed = arrays[0][0].dtype, ctypes.c_int()
    # The routine itself would write where nothing is.
    if dtype.char not in "fd" or any(a.dtype != dtype or len(a) != n or not a.flags.f_contiguous for a, n in arrays):
        found = ", ".join(f"{array.shape} of {array.dtype}" for array, _ in arrays)
        raise ValueError(f"matrices must be square, of one size, and of float32 or float64, found {found}")
    act, given = _load(("s" if dtype.char == "f" else "d") + routine), (*map(_pointer, arguments), ctypes.byref(failed))
    if len(arrays[0][0]) > QUICK_ROWS:
        list(ahead(lambda given: act(*given[0]), [(given, arguments)]))
    else:
        act(*given)
    return failed.value == 0


def _pointer(argument: bytes | int | np.ndarray) -> Any:
    """Return a pointer to an argument; ctypes' own conversion of an array takes as long as to factorise ten rows."""
    if isinstance(argument, int):
        return ctypes.byref(ctypes.c_int(argument))
    return argument if isinstance(argument, bytes) else ctypes.c_void_p(argument.ctypes.data)


@cache
def _load(name: str) -> Any:
    """A routine of the library that SciPy brings, as a function of pointers."""
    capsule, api = cython_lapack.__pyx_capi__[name], ctypes.pythonapi
    name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))
    address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    return ctypes.CFUNCTYPE(None)(address_of(capsule, name_of(capsule)))
