"""What the two engines of :func:`~thalweg.descent.minimize` share: a chunk of a run, and how it is looked at.

An engine takes a run from where it stands (:class:`Progress`) a chunk further. The compiled one
(:mod:`~thalweg.descent.chunks`) runs many steps in one program, the host one (:mod:`~thalweg.descent.host`) one step
after the other. Iterates, records and verdicts are the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from thalweg import trees
from thalweg.descent.fingerprint import Same, captured
from thalweg.descent.iteration import Descent, Info, State
from thalweg.descent.result import History, Status
from thalweg.descent.stopping import StoppingRule

GROWTH = 32
"""With no stride given, the rule looks at every step at first and then at about every 1/32 of the way so far: a few
hundred looks whatever the length of the run, and at most 3 % of the steps after it could have stopped."""

APART = 10
"""With no stride given, records of an exact oracle lie at least this many steps apart. A record evaluates the
objective, which costs about half a step: about 5 % of a short run, and nothing of a long one."""


@dataclass
class Progress:
    """Where a run stands between two chunks."""

    state: State
    rule_state: PyTree
    history: History
    work: float = 0.0
    seconds: float = 0.0
    status: Status = Status.RUNNING

    @cached_property
    def steps(self) -> int:
        """Steps taken."""
        return int(self.state.steps)


@dataclass(frozen=True)
class Course:
    """What an engine is to run, and how far."""

    descent: Descent
    rule: StoppingRule
    key: Key[Array, ""]
    last_step: int
    """No step is taken after this one."""
    stride: int
    """Steps between two records; 0 for a stride that grows with the run."""
    record_by_record: bool
    """Whether a chunk ends with its first record, because somebody looks at each."""
    compiler_options: Mapping[str, Any] | None = None

    @property
    def options(self) -> tuple:
        """The compiler's options, in a form that can be hashed."""
        return tuple(sorted((self.compiler_options or {}).items()))


class Chunk(NamedTuple):
    """What an engine returns; a state that is not finite is replaced by the last one that was."""

    state: State
    rule_state: PyTree
    status: Status
    steps: np.ndarray
    """The steps that were recorded."""
    numbers: np.ndarray
    """For each of them value, residual, size, and the work since the start of the chunk."""
    taken: int
    """Steps taken in this chunk."""
    work: float
    """Work done in this chunk."""


def split(tree: PyTree) -> tuple[tuple, tuple]:
    """A pytree as its arrays, which travel through ``jit``, and the rest, by which what was compiled is found again.

    The arrays are a plain tuple, which costs far less to take apart at every call than the modules they came from.
    """
    leaves, structure = jax.tree.flatten(tree)
    is_array = [eqx.is_array(leaf) for leaf in leaves]
    arrays = tuple(leaf for leaf, travels in zip(leaves, is_array, strict=True) if travels)
    others = tuple(None if travels else leaf for leaf, travels in zip(leaves, is_array, strict=True))
    return arrays, (structure, others)


def join(rest: tuple, arrays: tuple) -> PyTree:
    """Put the arrays back where they were."""
    structure, others = rest
    remaining = iter(arrays)
    return jax.tree.unflatten(structure, [next(remaining) if leaf is None else leaf for leaf in others])


def one_step(descent: Descent, state: State, key: Key[Array, ""]) -> tuple[State, Info]:
    """Take one step, with the oracle's outer loop and the step's own key."""
    period = descent.oracle.period
    if period is not None:
        due = (state.steps > 0) & (state.steps % period == 0)
        state = jax.lax.cond(due, lambda state: descent.renew(state), lambda state: state, state)
    if not descent.oracle.deterministic:
        key = jax.random.fold_in(key, state.steps)
    return descent.update(state, key)


def book_dtype(state: State) -> np.dtype:
    """The dtype in which values and residuals are kept."""
    return trees.single(trees.dtype(state.x))


@lru_cache(maxsize=32)
def _last_captures(rest: tuple) -> list[tuple]:
    return []


def captures_of(tree: PyTree, rest: tuple) -> tuple:
    """What the functions of a method capture now.

    JAX keeps by identity what a NumPy array held when it was first compiled in: where that has changed, it forgets all.
    """
    captures, last = captured(tree), _last_captures(rest)
    refuse_traced([one.value for one in captures if isinstance(one, Same)])
    if last and last[0] != captures:
        jax.clear_caches()
    last[:] = [captures]
    return captures


def refuse_traced(parts: PyTree) -> None:
    """Raise where jit, vmap or grad hand in arrays without numbers, with which no run can be looked at."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(parts)):
        raise TypeError(
            "minimize cannot be traced: x0, key, a part or what a function captures holds a traced array, as under "
            "jax.jit, vmap or grad. It compiles its loop by itself; call it outside, or trace Descent(...).update in a "
            "loop of your own"
        )
