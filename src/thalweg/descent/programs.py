"""Compiled programs of a method, held for later calls as long as nothing that its functions capture has changed."""

import gc
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import PyTree

from thalweg.descent.captured import captured, unchanged

MAX_PROGRAMS = 32
"""How many programs are held, each with the arrays it captures. Twice as many would hold twice as much memory."""


class _Program(NamedTuple):
    method: PyTree
    """What was compiled, without its arrays."""
    captures: list[Any]
    """What its functions captured then."""
    call: Callable[..., Any]


_programs: OrderedDict[tuple, _Program] = OrderedDict()
_lock = Lock()


def compiled(
    function: Callable[..., Any], method: PyTree, *static: Any, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Return ``function(method, *static, …)``, compiled, as a function of the remaining arguments.

    The arrays of the method are arguments of the program, so that a method with other arrays shares it. ``options`` are
    those of the compiler.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from thalweg.descent import L1
    >>> objective = lambda term, x: term.value(x)
    >>> float(compiled(objective, L1(2.0))(jnp.ones(3))), float(compiled(objective, L1(1.0))(jnp.ones(3)))
    (6.0, 3.0)
    """
    leaves, structure = jax.tree.flatten(method)
    arrays = tuple(leaf for leaf in leaves if eqx.is_array(leaf))
    others = tuple(None if eqx.is_array(leaf) else leaf for leaf in leaves)
    key = function, static, tuple(sorted((options or {}).items())), structure, others
    captures = captured(method)
    refuse_traced(captures)
    with _lock:
        program = _programs.get(key)
        if program is None or not unchanged(program.captures, captures):
            _drop_changed()

            def run(arrays: tuple, *arguments: Any) -> Any:
                rest = iter(arrays)
                joined = [next(rest) if leaf is None else leaf for leaf in others]
                return function(jax.tree.unflatten(structure, joined), *static, *arguments)

            call = jax.jit(run, compiler_options=dict(options or {}))
            program = _programs[key] = _Program(jax.tree.unflatten(structure, others), captures, call)
        _programs.move_to_end(key)
        if len(_programs) > MAX_PROGRAMS:
            _programs.popitem(last=False)
    return partial(program.call, arrays)


def _drop_changed() -> None:
    """Drop the programs of functions whose captured values have changed.

    JAX holds the converted copy of a NumPy array as long as a program does, and would give it to the next one.
    """
    changed = [key for key, held in _programs.items() if not unchanged(held.captures, captured(held.method))]
    for key in changed:
        del _programs[key]
    if changed:
        gc.collect()


def refuse_traced(parts: PyTree) -> None:
    """Raise where jit, vmap or grad hand in arrays without numbers, at which no run can look."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(parts)):
        raise TypeError(
            "minimize cannot be traced: x0, key, a part or what a function captures holds a traced array, as under "
            "jax.jit, vmap or grad. It compiles its loop by itself; call it outside, or trace Descent(...).update in a "
            "loop of your own"
        )
