"""LAPACK without the lock of Python's interpreter, which SciPy's wrappers hold: threads that factorise run at once."""

import ctypes
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import cython_lapack


def call(routine: str, *arguments: Any) -> bool:
    """Call a routine on letters, whole numbers and arrays in Fortran's order, some of which it overwrites.

    Arrays are all of float32 or all of float64. Returns whether the routine could do its work.

    Examples
    --------
    >>> lower = np.array([[4.0, 0.0], [2.0, 5.0]], order="F")
    >>> call("potrf", b"L", 2, lower, 2), lower.tolist()
    (True, [[2.0, 0.0], [1.0, 2.0]])
    """
    arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
    assert all(array.flags.f_contiguous and array.dtype == arrays[0].dtype for array in arrays)
    failed, function = ctypes.c_int(), _load(("s" if arrays[0].dtype == np.float32 else "d") + routine)
    function(*map(_pointer, arguments), ctypes.byref(failed))
    return failed.value == 0


def _pointer(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    return argument if isinstance(argument, bytes) else ctypes.byref(ctypes.c_int(argument))


@cache
def _load(name: str) -> Any:
    """A routine of the library that SciPy brings, as a function of pointers."""
    capsule, api = cython_lapack.__pyx_capi__[name], ctypes.pythonapi
    name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))
    address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    return ctypes.CFUNCTYPE(None)(address_of(capsule, name_of(capsule)))
