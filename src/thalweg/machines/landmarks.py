"""Block updates: rows become landmarks block by block, each block solved for with all others held fixed.

A block's weights W minimise Σ w ℓ(f(x), y) + α/2·‖f‖² over its own rows, where f changes by K·ΔW. With the curvature L
of the loss, P = K + α/(Lw) and s = ∇ℓ(f) + αW/w, which is 0 at the optimum, the iteration is

    W ← W − P⁻¹ s / L.

It is a gradient step in the geometry of the function space: one step solves the squared loss, others are accelerated by
FISTA with restarts. Losses with kinks take the smoothed gradient of their dual, argmax_a ⟨a, f⟩ − ℓ*(a) − ‖a − a₀‖²/2
at a₀ = −αW/w, which leaves the solution where it is; such steps do not converge when accelerated without end, so that
only the first ones are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.arguments import whole
from thalweg.codec import storable
from thalweg.compiling import quick_jit
from thalweg.kernels import Kernel
from thalweg.kernels.forms import Radial
from thalweg.kernels.host import kernel_tiles
from thalweg.linalg import factorise, namespace
from thalweg.linalg.arrays import matmul, replaced, while_loop
from thalweg.machines.doubly_stochastic import Capped
from thalweg.machines.expansion import values_at, with_capacity
from thalweg.machines.learner import Learner, Predictions, chunks
from thalweg.machines.losses import Loss
from thalweg.rows import Table
from thalweg.runs import Run
from thalweg.threads import ahead, enough_threads

ACCELERATED_ROUNDS = 200
"""Rounds of a loss with kinks that are accelerated; more make it oscillate."""

RELAXATION = 1.6
"""Factor of its later steps: any number below 2 converges, and this one faster than 1."""

STALLED = 0.9
"""Refinements of the squared loss end where one leaves more than this share of the residual, which is then rounding."""

STREAM_ROUNDS, LONE_BLOCK_ROUNDS = 5, 1000
"""Rounds of a block among others, which would be fitted as if it were the last one by more, and of a lone block."""

ROUNDS_BETWEEN_LOOKS = 100
"""Rounds of a lone block between two looks at the clock and at Ctrl-C: about a tenth of a second."""

RESOLVED_SHARE = 1 / 8
"""The last block of a stream is solved for again when it has grown by this share; until then new rows are solved for
alone."""


def runs_on_host(kernel: Kernel) -> bool:
    """Whether landmarks are computed with by NumPy: on a CPU, for kernels with a NumPy implementation.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> runs_on_host(Gaussian()) == (jax.default_backend() == "cpu")
    True
    """
    return jax.default_backend() == "cpu" and isinstance(kernel, Radial)


class _Rounds(NamedTuple):
    weights: Any
    values: Any
    ahead: Any
    """Weights and values at which the next gradient is taken."""
    momentum: Any
    """t of FISTA."""
    residual: Any
    previous: Any
    count: Any


def solve_block(
    matrix: Any,
    values: Any,
    targets: Any,
    row_weights: Any,
    weights: Any,
    loss: Loss,
    ridge: Any,
    tol: Any,
    max_rounds: int,
    first_round: int = 0,
) -> tuple[Any, Any]:
    """Return the weights of a block with all others held fixed, and the largest |s| of a row, on host or device.

    Parameters
    ----------
    matrix
        K of the block's rows.
    values, targets, row_weights
        f at the rows with ``weights``, y and w; a row of weight 0 is padding.
    weights
        Where to start.
    loss, ridge
        ℓ and α.
    tol, max_rounds
        It ends where no |s| is larger, or after so many rounds.
    first_round
        Rounds that were made before.

    Examples
    --------
    >>> from thalweg.machines import SquaredLoss
    >>> K, y = np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([[1.0], [2.0]])
    >>> weights, residual = solve_block(K, 0 * y, y, np.ones(2), 0 * y, SquaredLoss(), 0.1, 1e-9, 5)
    >>> bool(np.allclose(weights, np.linalg.solve(K + 0.1 * np.eye(2), y)))
    True
    """
    xp = namespace(values)
    there = row_weights > 0
    w = xp.where(there, row_weights, 1)[:, None].astype(values.dtype)
    matrix = xp.where(there[:, None] & there[None, :], matrix, 0)
    factor = factorise(matrix, xp.where(there, ridge / (loss.curvature * w[:, 0]), 1).astype(values.dtype))
    root = factor.inverse_root() if max_rounds > STREAM_ROUNDS or xp is jnp else None

    def precondition(block: Any) -> Any:
        # Products take a tenth of the time of solves; what rounding costs them, further rounds make good.
        return factor.solve(block) if root is None else matmul(matmul(root, block).T, root).T

    def distance(weights: Any, values: Any) -> Any:
        """s in every row."""
        dual = -ridge * weights / w
        return xp.where(there[:, None], loss.smoothed_gradient(values, targets, dual) - dual, 0).astype(values.dtype)

    def unfinished(now: _Rounds) -> Any:
        going = (now.count < max_rounds) & (now.residual > tol)
        return going & (now.residual < STALLED * now.previous) if loss.quadratic else going

    def go(now: _Rounds) -> _Rounds:
        accelerates = loss.smooth | (first_round + now.count < ACCELERATED_ROUNDS)
        at = tuple(xp.where(accelerates, a, b) for a, b in zip(now.ahead, now[:2], strict=True))
        short = distance(*at)
        relaxation = xp.where(accelerates, 1.0, RELAXATION).astype(values.dtype)
        change = -relaxation * precondition(short / loss.curvature)
        new = at[0] + change, at[1] + matmul(matrix, change)
        following = (1 + xp.sqrt(1 + 4 * now.momentum**2)) / 2
        # The momentum is dropped where it points uphill, and has no place in refinements.
        uphill = xp.sum(w * short * (new[1] - now.values)) > 0
        rests = uphill | xp.asarray(loss.quadratic)
        push = xp.where(rests, 0, (now.momentum - 1) / following).astype(values.dtype)
        further = tuple(one + push * (one - old) for one, old in zip(new, now[:2], strict=True))
        momentum = xp.where(rests, 1, following).astype(values.dtype)
        left = xp.max(xp.abs(distance(*new) if loss.quadratic else short))
        return _Rounds(*new, further, momentum, left, now.residual, now.count + 1)

    start = xp.max(xp.abs(distance(weights, values)))
    infinite = xp.asarray(xp.inf, values.dtype)
    one = xp.ones((), values.dtype)
    state = _Rounds(weights, values, (weights, values), one, start, infinite, xp.asarray(0))
    end = while_loop(unfinished, go, state, xp)
    return end.weights, end.residual


@quick_jit(lambda *_: False, tuned=False, static_argnames=("max_rounds",))
def _solve_on_device(
    kernel: Kernel, loss: Loss, x: Any, values: Any, y: Any, w: Any, weights: Any, ridge: Any, tol: Any, max_rounds: int
) -> tuple[Any, Any]:
    cast = lambda number: number.astype(values.dtype)
    return solve_block(kernel(x), values, y, w, weights, loss, cast(ridge), cast(tol), max_rounds)


@storable
class Examples(NamedTuple):
    """Targets and weights of the landmarks; a weight of 0 is an empty place."""

    targets: Any
    weights: Any


@storable
@dataclass
class LandmarkLearner(Learner):
    """Makes rows landmarks up to the rule's cap and solves for them block by block; further rows step along old blocks.

    ``examples`` are the targets and weights of landmarks, ``tol`` the tolerance of a block, ``max_rounds`` its rounds;
    ``filled`` rows of the last block are in use, ``unsolved`` of them were added since it was last solved for as a
    whole; of the last call of :meth:`learn`, ``absorbed`` rows have become landmarks.
    """

    examples: Examples
    tol: float
    max_rounds: int
    filled: int = 0
    unsolved: int = 0
    absorbed: int = 0

    def check_stored(self) -> None:
        """Refuse targets and counts that do not belong to the landmarks, as a file could hold them."""
        blocks, used = self.expansion.blocks, int(self.expansion.used)
        if self.examples.weights.shape != blocks.shape[:2] or len(self.examples.targets) != len(blocks):
            raise ValueError(f"examples of {self.examples.weights.shape} for landmarks of {blocks.shape[:2]}")
        whole("filled", self.filled, least=min(used, 1), most=self._block_size if used else 0)

    @property
    def features(self) -> int:
        """The number of landmarks."""
        return max(int(self.expansion.used) - 1, 0) * self._block_size + self.filled

    @property
    def _block_size(self) -> int:
        return self.machine.coordinates.width

    @property
    def kernel(self) -> Kernel:
        """The kernel of the landmarks."""
        return self.machine.coordinates.kernel

    def learn(
        self, table: Table, order: np.ndarray, alpha: float, total: float, before: Predictions | None = None
    ) -> Iterator[int]:
        """Fill the last block, make new ones while there is room, and step with the rest."""
        size, self.absorbed = self._block_size, 0
        if 0 < self.filled < size:
            part, order = np.split(order, [size - self.filled])
            self._fill(table, part, alpha)
            self.absorbed = len(part)
            yield len(part)
        limit = self.machine.rule.limit
        assert isinstance(self.machine.rule, Capped)
        assert limit is not None
        new, order = np.split(order, [(limit - int(self.expansion.used)) * size])
        self._make_room(-(-len(new) // size), limit)
        read = lambda part: table.batch(part, size, self.dtype)
        for part, batch in ahead(read, chunks(new, size, 1)):
            k = int(self.expansion.used)
            values = self.values_at(batch.x)
            now = self.expansion
            self.expansion = now._replace(blocks=replaced(now.blocks, k, batch.x), used=np.asarray(k + 1, np.int32))
            placed = (replaced(old, k, rows) for old, rows in zip(self.examples, batch[1:], strict=True))
            self.examples, self.filled, self.unsolved = Examples(*placed), len(part), 0
            self._update(k, values, alpha)
            if before is not None:
                before.append((part, values))
            self.absorbed += len(part)
            yield len(part)
        yield from self._steps(table, order, self.batch_size, alpha / total, until_settled=before is not None)

    def again(self, table: Table, order: np.ndarray, alpha: float, total: float) -> Iterator[int]:
        """Sweep over all blocks, and step with the rows of ``order`` that :meth:`learn` made no landmarks of."""
        count = int(self.expansion.used)
        shuffle = np.random.default_rng([self.seed, int(self.expansion.steps), count])
        landmarks = self.features
        for k in shuffle.permutation(count):
            self._update(int(k), self.values_at(self.expansion.blocks[k]), alpha)
            yield landmarks // count
        yield from self._steps(table, shuffle.permutation(order[self.absorbed :]), self.batch_size, alpha / total)

    def solve_lone_block(self, alpha: float, run: Run) -> None:
        """Solve for the only block to its tolerance, with looks at the run in between."""
        rounds = 0
        while rounds < LONE_BLOCK_ROUNDS:
            values = self.values_at(self.expansion.blocks[0])
            residual = self._update(0, values, alpha, ROUNDS_BETWEEN_LOOKS, rounds)
            rounds += ROUNDS_BETWEEN_LOOKS
            run.keep(self.expansion)
            run.advance(note=f"residual {residual:.2g}")
            if residual <= self.tol:
                return

    def place(self, table: Table, order: np.ndarray) -> None:
        """Make rows landmarks in this order, without learning from them; there must be nothing before."""
        batches = table.stack(order, self._block_size, self.dtype)
        count, outputs = len(batches.x), table.outputs
        weights, drift = (np.zeros((count, *more), self.dtype) for more in ((self._block_size, outputs), (outputs,)))
        now = self.expansion
        self.expansion = now._replace(blocks=batches.x, weights=weights, drift=drift, used=np.asarray(count, np.int32))
        self.examples = Examples(batches.y, batches.weights)
        self.filled, self.absorbed = (len(order) - 1) % self._block_size + 1, len(order)

    def take(self, weights: np.ndarray) -> None:
        """Take over weights that were found for all landmarks at once."""
        shape = self.expansion.weights.shape
        flat = np.zeros((shape[0] * shape[1], shape[2]), self.dtype)
        flat[: len(weights)] = np.asarray(weights) / np.asarray(self.expansion.scale)
        self.expansion = self.expansion._replace(weights=flat.reshape(shape))

    def landmarks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the landmarks, what each of them adds to f, and their weights, on the host."""
        flat = lambda array: np.asarray(array).reshape(-1, *array.shape[2:])[: self.features]
        now = self.expansion
        return flat(now.blocks), np.asarray(now.scale) * flat(now.weights), flat(self.examples.weights)

    def with_targets(self, factor: np.ndarray, shift: np.ndarray, alpha: float) -> Self:
        """Also change the targets of landmarks, and solve for all blocks again."""
        changed = super().with_targets(factor, np.zeros_like(shift), alpha)
        times, plus = (np.asarray(change, self.dtype)[None, None, :] for change in (factor, shift))
        changed.examples = self.examples._replace(targets=self.examples.targets * times + plus)
        return changed._swept(alpha)

    def with_intercept(self, intercept: np.ndarray, alpha: float) -> Self:
        """Also solve for all blocks again."""
        return super().with_intercept(intercept, alpha)._swept(alpha)

    def values_at(self, x: Any) -> Any:
        """f at rows, on the host or on the device."""
        return values_at(self.machine.coordinates, self.expansion, x)

    def _swept(self, alpha: float) -> Self:
        changed = replace(self)
        for k in range(int(self.expansion.used)):
            changed._update(k, changed.values_at(changed.expansion.blocks[k]), alpha)
        return changed

    def _update(
        self,
        k: int,
        values: Any,
        alpha: float,
        max_rounds: int | None = None,
        first_round: int = 0,
        rows: slice = slice(None),
    ) -> float:
        """Solve for a block, or for some rows of it, where f has these values; return the largest |s|."""
        now, rounds = self.expansion, self.max_rounds if max_rounds is None else max_rounds
        x: Any
        x, y, w = now.blocks[k][rows], self.examples.targets[k][rows], self.examples.weights[k][rows]
        weights = now.scale * now.weights[k][rows]
        if runs_on_host(self.kernel):
            x, y, w, weights, values = (np.asarray(part, self.dtype) for part in (x, y, w, weights, values))
            matrix = kernel_tiles(self.kernel, x).to_dense()
            solve = partial(solve_block, max_rounds=rounds, first_round=first_round)
            with enough_threads(len(x) // 2):
                weights, residual = solve(matrix, values, y, w, weights, self.machine.loss, alpha, self.tol)
        else:
            numbers = jnp.asarray(alpha), jnp.asarray(self.tol)
            weights, residual = _solve_on_device(
                self.kernel, self.machine.loss, x, values, y, w, weights, *numbers, rounds
            )
        self.expansion = now._replace(weights=replaced(now.weights, (k, rows), weights / now.scale))
        return float(residual)

    def _make_room(self, blocks: int, limit: int) -> None:
        self.expansion = with_capacity(self.expansion, int(self.expansion.used) + blocks, limit)
        missing = self.expansion.capacity - len(self.examples.weights)
        if missing:
            pad = lambda array: namespace(array).pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
            self.examples = Examples(*map(pad, self.examples))

    def _fill(self, table: Table, part: np.ndarray, alpha: float) -> None:
        """Put rows in the empty places of the last block, and solve for them, or for all of it now and then."""
        k, there = int(self.expansion.used) - 1, slice(self.filled, self.filled + len(part))
        batch = table.batch(part, len(part), self.dtype)
        now = self.expansion
        values = self.values_at(batch.x) if runs_on_host(self.kernel) else None
        self.expansion = now._replace(blocks=replaced(now.blocks, (k, there), batch.x))
        put = (replaced(old, (k, there), rows) for old, rows in zip(self.examples, batch[1:], strict=True))
        self.examples, self.filled, self.unsolved = Examples(*put), there.stop, self.unsolved + len(part)
        if self.unsolved >= RESOLVED_SHARE * self.filled or values is None:
            # A device solves for the whole block in less time than it takes to compile for other sizes.
            rows = slice(0, self.filled) if values is not None else slice(None)
            self._update(k, self.values_at(self.expansion.blocks[k][rows]), alpha, rows=rows)
            self.unsolved = 0
        else:
            self._update(k, values, alpha, rows=there)
