"""Compiled programs of a method, held for later calls as long as nothing that its functions capture has changed.

Functions capture closures, defaults, globals and attributes. A snapshot of them shows whether a compiled program is
still that of its functions, a fingerprint whether a checkpoint belongs to the same run, also in another process.
"""

import functools
import hashlib
import inspect
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

MAX_PROGRAMS = 32
"""How many programs are held, each with the arrays it captures. Twice as many would hold twice as much memory."""


class _Program(NamedTuple):
    method: PyTree
    """What was compiled, without its arrays."""
    captures: list[Any]
    """What its functions captured then."""
    call: Any
    """The jitted function."""


_programs: OrderedDict[tuple, _Program] = OrderedDict()
_lock = Lock()


def compiled(
    function: Callable[..., Any], method: PyTree, *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Return ``function(method, …)``, compiled, as a function of the remaining arguments.

    The arrays of the method are arguments of the program, so that a method with other arrays shares it. ``options`` are
    those of the compiler.

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg.descent import L1
    >>> objective = lambda term, x: term.value(x)
    >>> float(compiled(objective, L1(2.0))(np.ones(3))), float(compiled(objective, L1(1.0))(np.ones(3)))
    (6.0, 3.0)
    """
    leaves, structure = jax.tree.flatten(method)
    arrays = tuple(leaf for leaf in leaves if eqx.is_array(leaf))
    others = tuple(None if eqx.is_array(leaf) else leaf for leaf in leaves)
    key = function, tuple(sorted((options or {}).items())), structure, others
    captures = captured(method)
    refuse_traced(captures)
    with _lock:
        program = _programs.get(key)
        if program is None or not unchanged(program.captures, captures):
            _drop_changed()

            def run(arrays: tuple, *arguments: Any) -> Any:
                rest = iter(arrays)
                joined = [next(rest) if leaf is None else leaf for leaf in others]
                return function(jax.tree.unflatten(structure, joined), *arguments)

            call = jax.jit(run, compiler_options=dict(options or {}))
            program = _programs[key] = _Program(jax.tree.unflatten(structure, others), captures, call)
        _programs.move_to_end(key)
        if len(_programs) > MAX_PROGRAMS:
            _programs.popitem(last=False)
    return functools.partial(program.call, arrays)


def _drop_changed() -> None:
    """Drop the programs of functions whose captured values have changed.

    JAX holds the converted copy of a NumPy array as long as a program does, and would give it to the next one. The
    program is emptied, too, since somebody else may hold it: the traceback of a run that failed, for instance.
    """
    changed = [key for key, held in _programs.items() if not unchanged(held.captures, captured(held.method))]
    for key in changed:
        _programs.pop(key).call.clear_cache()


def refuse_traced(parts: PyTree) -> None:
    """Raise where jit, vmap or grad hand in arrays without numbers, at which no run can look."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(parts)):
        raise TypeError(
            "minimize cannot be traced: x0, key, a part or what a function captures holds a traced array, as under "
            "jax.jit, vmap or grad. It compiles its loop by itself; call it outside, or trace Descent(...).update in a "
            "loop of your own"
        )


LIBRARIES = {"jax", "jaxlib", "numpy", "scipy", "optax", "equinox", "thalweg", "functools", "builtins"}
"""Packages whose functions refer to no globals that a user changes."""

_PLAIN = (bool, int, float, complex, str, bytes, np.generic, types.NoneType)
_INDIVISIBLE = (np.ndarray, jax.Array, type, types.ModuleType, types.BuiltinFunctionType)
_TRANSPARENT = (tuple, list, dict, set, frozenset, types.MethodType, eqx.Module)
"""What is the same if its parts are; other objects of libraries, and callables, count by identity, too."""


def captured(tree: PyTree) -> list[Any]:
    """Return what the functions in a tree capture, in a form that :func:`unchanged` compares.

    These are the variables they enclose, their defaults, the globals they name, the attributes of callables and of the
    objects of methods, and the code of the functions among them. JAX's arrays cannot change and count by identity,
    NumPy's by their content. The tree's own arrays do not count: they are arguments of what is compiled.

    Examples
    --------
    >>> b = np.zeros(3)
    >>> f = lambda x, b=b: x - b
    >>> before = captured(f)
    >>> b[0] = 1.0
    >>> unchanged(before, captured(f))
    False
    """

    def snapshot(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            digest = hashlib.sha1(np.ascontiguousarray(value).view(np.uint8).data, usedforsecurity=False).digest()
            return value.dtype.str, value.shape, digest
        return value.__code__ if isinstance(value, types.FunctionType) else value

    return [snapshot(value) for value in _parts_within(tree, inside=False)]


def unchanged(before: list[Any], after: list[Any]) -> bool:
    """Return whether two snapshots are the same: values by equality, objects by identity."""
    same = lambda a, b: a == b if isinstance(a, tuple) else a is b
    return len(before) == len(after) and all(map(same, before, after))


def fingerprint(tree: PyTree) -> str:
    """Digest a tree: arrays by their content, functions by their source text and by what they capture.

    Nothing of it depends on the process or on the version of Python.

    Examples
    --------
    >>> scale = 2.0
    >>> before = fingerprint(lambda x: scale * x)
    >>> scale = 3.0
    >>> fingerprint(lambda x: scale * x) == before
    False
    """
    digest = hashlib.sha256()
    for value in _parts_within(tree, inside=True):
        if isinstance(value, jax.Array | np.ndarray):
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                value = jax.random.key_data(value)
            array = np.ascontiguousarray(value)
            digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        elif isinstance(value, types.FunctionType):
            digest.update(f"{value.__qualname__}{_source(value)}".encode())
        elif isinstance(value, tuple):
            digest.update(repr(value).encode())
        else:
            kind = value if isinstance(value, type | types.BuiltinFunctionType) else type(value)
            digest.update(kind.__qualname__.encode())
    return digest.hexdigest()[:12]


def _parts_within(tree: PyTree, inside: bool) -> list[Any]:
    """Return what a tree is made of, depth first; ``inside`` a function arrays and numbers count, too."""
    collected: list[Any] = []
    seen: dict[int, Any] = {}

    def visit(value: Any, inside: bool) -> None:
        if isinstance(value, _PLAIN):
            if inside:
                collected.append((type(value).__name__, repr(value)))
        elif isinstance(value, _INDIVISIBLE):
            if inside:
                collected.append(value)
        elif id(value) not in seen:
            seen[id(value)] = value
            opaque = callable(value) or _is_of_library(type(value))
            collected.append(value if opaque and not isinstance(value, _TRANSPARENT) else type(value))
            # The arrays of a module are arguments, whether it can be called or not.
            inside = inside or (callable(value) and not isinstance(value, eqx.Module))
            for part in _parts(value):
                visit(part, inside)

    visit(tree, inside)
    return collected


def _parts(value: Any) -> Iterable[Any]:
    """Return everything in a function, a container or an object that a user could change."""
    if isinstance(value, types.FunctionType):
        cells = [cell for cell in value.__closure__ or () if cell != types.CellType()]  # those that have a value
        enclosed = [cell.cell_contents for cell in cells]
        return [value.__defaults__, value.__kwdefaults__, *enclosed, *_named_globals(value)]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, dict):
        return [part for entry in value.items() for part in entry]
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, tuple | list):
        return value
    if isinstance(value, eqx.Module):
        # By name: a module that JAX has put together again holds its fields in another order.
        return [part for _, part in sorted(vars(value).items())]
    if hasattr(value, "__wrapped__"):
        return [value.__wrapped__]
    if _is_of_library(type(value)):
        return []
    return [vars(type(value)).get("__call__"), *getattr(value, "__dict__", {}).values()]


def _is_of_library(value: Any) -> bool:
    return (value.__module__ or "").split(".")[0] in LIBRARIES


def _named_globals(function: types.FunctionType) -> list[Any]:
    """Return the globals that a function names, itself or within functions that it makes."""
    codes, names = [] if _is_of_library(function) else [function.__code__], set[str]()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return [function.__globals__[name] for name in sorted(names) if name in function.__globals__]


def _source(function: types.FunctionType) -> tuple:
    """Return the text of a function and where in it the function ends, since a line may hold several lambdas."""
    try:
        lines, _ = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return ()
    code = function.__code__
    ends = [(line or 0, column or 0) for _, line, _, column in code.co_positions()]
    line, column = max(ends, default=(code.co_firstlineno, 0))
    return "".join(lines), line - code.co_firstlineno, column
