"""Learners: the state of a kernel machine on the host, and the passes it makes over examples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from thalweg.arguments import whole
from thalweg.codec import storable
from thalweg.kernels import Kernel, RandomFeatures
from thalweg.machines.coordinates import Coordinates, Frequencies, Points
from thalweg.machines.dense import Dense
from thalweg.machines.expansion import Expansion, empty, predict, with_room
from thalweg.machines.folds import kernel_matrix
from thalweg.machines.host import Stopped, absorb, fill, revisit
from thalweg.machines.methods import Settings
from thalweg.machines.rows import Rows
from thalweg.machines.rules import Capped
from thalweg.machines.steps import Judged, Machine, run
from thalweg.machines.visits import Examples, Visitor, append
from thalweg.padding import padded, padded_size
from thalweg.threads import ahead

# Steps in one compiled scan, where a step has few rows; what is left at the end of a pass goes one by one. Where
# it has many, the call costs nothing beside the step, and one program less is compiled.
_CHUNK, _MANY_ROWS = 8, 1024
# Batches of a preconditioned step, in features of a block: fewer rows than features would fit the batch alone.
_ROWS_PER_FEATURE = 4
# Where a batch has few rows, so many frequencies of a block for each.
_FREQUENCIES_PER_ROW = 4
# Steps whose mean loss is compared with that of as many before, at least, and by how much it must be lower: they are
# the dearer part of a pass over many rows, and the first of them gain the most.
_WINDOW, _SETTLED = 8, 0.005
# Room for blocks of frequencies at the start, which is but that of their weights: room for more compiles again.
_ROOM = 64
# Frequencies of a pass, times features, that are kept unasked: to make those of every step anew takes far longer.
_KEPT = 2**18
# Rounds of a visit. More of them in a stream fit each block as if it were the last one; a lone block is solved.
_ROUNDS, _ROUNDS_OF_ONE_BLOCK = 5, 1000
# Up to so many new rows of a stream are solved for alone, and their block is visited so often while it doubles. The
# size of a lone block of landmarks is a multiple of the last number, or of a power of two.
_FEW, _VISITS, _GRAIN = 32, 8, 64

Foreseen = list[tuple[np.ndarray, Any]]
"""Rows in the order in which they were learned from, some at a time, and f there before."""


@storable
@dataclass
class Learner:
    """Learns along the blocks that a rule chooses, one batch per step.

    Parameters
    ----------
    machine
        The parts of the method.
    expansion
        The function so far.
    batch_size
        Rows per step.
    seed
        Seeds the choice of blocks; with the number of steps taken it gives the key of a step.
    """

    machine: Machine
    expansion: Expansion
    batch_size: int
    seed: int

    @property
    def dtype(self) -> Any:
        """The precision that it works in."""
        return self.expansion.weights.dtype

    @property
    def features(self) -> int:
        """The number of features in use."""
        return int(self.expansion.used) * self.machine.coordinates.width

    def learn(
        self, rows: Rows, order: np.ndarray, alpha: float, total: float, foreseen: Foreseen | None = None
    ) -> Iterator[int]:
        """Learn from new rows in this order; yield the numbers of rows as they are done.

        ``total`` is the weight of all rows in the sum of losses that ``alpha`` regularises. To ``foreseen`` rows that
        become landmarks are added, with f there before it has learned from them; where it is given, steps that no
        longer lower the loss on new rows are the last.
        """
        yield from self._steps(rows, order, self.batch_size, alpha / total)

    def again(self, rows: Rows, order: np.ndarray, alpha: float, total: float) -> Iterator[int]:
        """Learn from rows that were seen before."""
        yield from self.learn(rows, order, alpha, total)

    def predict(self, x: Any, *frame: np.ndarray | None) -> np.ndarray:
        """f at the rows of ``x``, an array, a memory map or a sparse matrix, in the frame of :class:`Rows`."""
        return predict(self.machine.coordinates, self.expansion, x, *frame)

    def judged(self, rows: Rows, found: np.ndarray | None = None) -> tuple[float, float]:
        """The mean loss on rows, and how far predictions are from their targets in the units users know."""
        found = self.predict(rows.x, *rows.frame) if found is None else found
        loss: Any = self.machine.loss
        values = loss.value(found, np.asarray(rows.targets_of(slice(None)), self.dtype))
        return float(np.average(np.asarray(values), weights=rows.weights)), rows.misses(found)

    def at_level(self, intercept: np.ndarray, alpha: float) -> Self:
        """Return a learner whose function has another intercept."""
        return replace(self, expansion=self.expansion._replace(intercept=jax.device_put(intercept.astype(self.dtype))))

    def in_units(self, factor: np.ndarray, shift: np.ndarray, alpha: float) -> Self:
        """Return a learner whose targets are ``factor`` times what they were and ``shift`` more, for each output.

        Without a memory of targets it is the old function in the new units: its intercept has the shift.
        """
        now, times = self.expansion, jnp.asarray(factor, self.dtype)
        mean_square = now.mean_square * jnp.mean(times**2)
        weights, drift = now.weights * times[None, None, :], now.drift * times[None, :]
        intercept = now.intercept * times + jnp.asarray(shift, self.dtype)
        return replace(
            self,
            expansion=now._replace(weights=weights, drift=drift, mean_square=mean_square, intercept=intercept),
        )

    def mapped(self, convert: Callable[[Any], Any]) -> Self:
        """Return the same learner with its arrays, but not random keys, converted."""
        parts = vars(self)
        is_number = lambda leaf: eqx.is_array(leaf) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return replace(self, **jax.tree.map(lambda leaf: convert(leaf) if is_number(leaf) else leaf, parts))

    def _steps(
        self, rows: Rows, order: np.ndarray, size: int, ridge: float, until_settled: bool = False
    ) -> Iterator[int]:
        machine = eqx.tree_at(lambda m: m.ridge, self.machine, jnp.asarray(ridge))
        told, window = list[float](), max(_WINDOW, int(self.expansion.used) // 4)
        for part in _chunks(order, size, _steps_at_once(size)):
            batches = rows.stack(part, size, self.dtype)
            steps, taken = len(batches.weights), int(self.expansion.steps)
            keys = _keys(self.seed, np.arange(taken, taken + steps, dtype=np.int32))
            self.expansion, report = run(machine, self.expansion, batches, keys)
            yield len(part)
            if until_settled:
                told.extend(np.asarray(report.value).tolist())  # losses on rows that were new
                before, now = told[-2 * window : -window], told[-window:]
                if len(told) >= 2 * window and sum(now) > (1 - _SETTLED) * sum(before):
                    return


@storable
@dataclass
class LandmarkLearner(Learner):
    """Makes rows landmarks up to the rule's cap and visits them; further rows step along old blocks.

    A visit takes ``rounds`` at most, and fewer where ``tol`` is reached. ``examples`` are the targets and weights of
    landmarks; ``filled`` rows of the last block are in use; of the last call of :meth:`learn`, ``taken`` rows have
    become landmarks.
    """

    examples: Examples
    tol: float
    rounds: int
    filled: int = 0
    taken: int = 0

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

    def learn(
        self, rows: Rows, order: np.ndarray, alpha: float, total: float, foreseen: Foreseen | None = None
    ) -> Iterator[int]:
        """Fill the last block, make new ones while there is room, and step with the rest."""
        visitor = self._visitor(alpha)
        size, self.taken = self._block_size, 0
        if 0 < self.filled < size:
            part, order = np.split(order, [size - self.filled])
            self._fill(visitor, rows, part)
            self.taken = len(part)
            yield len(part)
        room = (self._limit - int(self.expansion.used)) * size
        new, order = np.split(order, [room])
        self._make_room(-(-len(new) // size))
        stacked = lambda part: rows.stack(part, size, self.dtype)
        for part, batches in ahead(stacked, _chunks(new, size, _steps_at_once(size))):
            try:
                self.expansion, self.examples, before = absorb(visitor, self.expansion, self.examples, batches)
            except Stopped as stopped:
                (self.expansion, self.examples), self.filled = stopped.kept, (len(part) - 1) % size + 1
                raise
            if foreseen is not None:
                foreseen.append((part, before))
            self.filled = (len(part) - 1) % size + 1
            self.taken += len(part)
            yield len(part)
        yield from self._steps(rows, order, self.batch_size, alpha / total, until_settled=foreseen is not None)

    def again(self, rows: Rows, order: np.ndarray, alpha: float, total: float) -> Iterator[int]:
        """Visit all blocks once more, and step with the rows of ``order`` that :meth:`learn` made no landmarks of."""
        visitor = self._visitor(alpha)
        count = int(self.expansion.used)
        shuffle = np.random.default_rng([self.seed, int(self.expansion.steps), count])
        landmarks = self.features
        for part in _chunks(shuffle.permutation(count).astype(np.int32), 1, _steps_at_once(self._block_size)):
            self.expansion, _ = revisit(visitor, self.expansion, self.examples, part)
            yield len(part) * landmarks // count
        yield from self._steps(rows, shuffle.permutation(order[self.taken :]), self.batch_size, alpha / total)

    def place(self, rows: Rows, order: np.ndarray) -> None:
        """Make rows landmarks in this order, without learning from them; there must be room and nothing before."""
        batches = rows.stack(order, self._block_size, self.dtype)
        count, now, put = len(batches.x), self.expansion, jax.device_put
        weights, drift = (put(np.asarray(part)[:count]) for part in (now.weights, now.drift))
        self.expansion = now._replace(blocks=put(batches.x), weights=weights, drift=drift, used=put(np.int32(count)))
        self.examples = Examples(put(batches.y), put(batches.weights))
        self.filled, self.taken = (len(order) - 1) % self._block_size + 1, len(order)

    def with_kernel(self, kernel: Kernel) -> Self:
        """Return a learner with another kernel, of one that knows nothing."""
        return replace(self, machine=replace(self.machine, coordinates=Points(kernel, self._block_size)))

    def landmarks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The landmarks, what each of them adds to f, and their weights, on the host."""
        there, now = self._of_landmarks, self.expansion
        return there(now.blocks), np.asarray(now.scale) * there(now.weights), there(self.examples.weights)

    def _of_landmarks(self, array: Any) -> np.ndarray:
        return np.asarray(array).reshape(-1, *array.shape[2:])[: self.features]

    def dense(self, alpha: float, tol: float) -> Dense:
        """Newton steps for all landmarks, their kernel matrix in memory; :meth:`take` takes over what they find."""
        there = self._of_landmarks
        matrix = kernel_matrix(self.machine.coordinates.kernel, there(self.expansion.blocks))
        targets, weights, level = (np.asarray(part, float) for part in (*self.examples, self.expansion.intercept))
        return Dense(matrix, there(targets), there(weights), self.machine.loss, alpha, level, tol)

    def take(self, weights: np.ndarray) -> None:
        """Take over weights that were found for all landmarks at once."""
        shape = self.expansion.weights.shape
        weights = padded(weights, shape[0] * shape[1]).reshape(shape) / np.asarray(self.expansion.scale)
        self.expansion = self.expansion._replace(weights=jax.device_put(weights.astype(self.dtype)))

    def in_units(self, factor: np.ndarray, shift: np.ndarray, alpha: float) -> Self:
        """Also change the targets of landmarks, and visit all blocks."""
        changed = super().in_units(factor, np.zeros_like(shift), alpha)
        times, plus = (jnp.asarray(change, self.dtype)[None, None, :] for change in (factor, shift))
        targets = self.examples.targets * times + plus
        changed.examples = self.examples._replace(targets=targets)
        return changed._revisited(alpha)

    def at_level(self, intercept: np.ndarray, alpha: float) -> Self:
        """Also visit all blocks."""
        return super().at_level(intercept, alpha)._revisited(alpha)

    def _revisited(self, alpha: float) -> Self:
        order = jnp.arange(int(self.expansion.used), dtype=jnp.int32)
        if not len(order):
            return self
        return replace(self, expansion=revisit(self._visitor(alpha), self.expansion, self.examples, order)[0])

    def _visitor(self, alpha: float) -> Visitor:
        points = self.machine.coordinates
        assert isinstance(points, Points)
        return Visitor(points, self.machine.loss, jnp.asarray(alpha), jnp.asarray(self.tol), self.rounds)

    @property
    def _limit(self) -> int:
        assert isinstance(self.machine.rule, Capped)
        return self.machine.rule.limit

    def _make_room(self, blocks: int) -> None:
        self.expansion = with_room(self.expansion, int(self.expansion.used) + blocks, self._limit)
        missing = self.expansion.capacity - len(self.examples.weights)
        if missing:
            pad = lambda array: jnp.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
            self.examples = Examples(*map(pad, self.examples))

    def _fill(self, visitor: Visitor, rows: Rows, part: np.ndarray) -> None:
        """Put rows in the empty places of the last block, and visit it; a few rows at a time, visit it now and then."""
        count = self.filled + len(part)
        put, size = fill, min(self._block_size, _GRAIN * 4 ** max(0, int(np.ceil(np.log2(count / _GRAIN) / 2))))
        due = int(_VISITS * np.log2(self.filled)) < int(_VISITS * np.log2(count))
        if len(part) <= _FEW and count > _GRAIN and not due:
            put, size = append, _FEW
        batch = rows.batch(part, size, self.dtype)
        self.expansion, self.examples = put(visitor, self.expansion, self.examples, batch, np.int32(self.filled))
        self.filled += len(part)


def start(
    settings: Settings,
    kernel: Kernel,
    dimension: int,
    outputs: int,
    rows: int | None,
    seed: int,
    dtype: Any,
    room: bool = True,
) -> Learner:
    """Return a learner that knows nothing, for so many rows; None means a stream without an end.

    Without ``room`` it has no place for blocks: it will be given arrays that have.
    """
    method, loss = settings.method, in_precision(settings.loss, dtype)
    size = settings.block_size
    if rows is not None:
        # Landmarks are in blocks of one size, padded as little as may be; of frequencies a block has about as many as
        # there are rows, and not many more than a batch has.
        even = -(-rows // -(-rows // size))
        given = rows if method.features == "landmarks" else method.batch_size or rows
        few = min(rows, _FREQUENCIES_PER_ROW * given)
        size = min(size, padded_size(even, _GRAIN) if method.visits else max(32, 1 << (few - 1).bit_length()))
    kernel.check_dimension("X", dimension)

    def of_size(size: int) -> Coordinates:
        if method.features == "landmarks":
            return Points(kernel, size)
        features = RandomFeatures(kernel, jax.random.key(seed), dimension, size, method.features)
        steps = np.inf if rows is None else rows / (method.batch_size or _ROWS_PER_FEATURE * features.width)
        return Frequencies(features, method.keep_frequencies or steps * size * dimension <= _KEPT)

    parts = of_size(size)
    if method.capped and parts.width > settings.max_features:
        size = max(size * settings.max_features // parts.width, 1)
        parts = of_size(size)
    limit = max(settings.max_features // parts.width, 1)
    batch_size = method.batch_size or _ROWS_PER_FEATURE * parts.width
    if method.features == "landmarks" and not method.visits and batch_size < size:
        raise ValueError(
            f"batch_size must be at least block_size={size} with features='landmarks', which are rows of the batch; "
            f"found {batch_size}"
        )
    machine = method.machine(parts, loss, limit)
    if isinstance(machine.step, Judged):
        batch_size = max(batch_size, 2)  # one row proposes a step, another judges it
    capacity = (1 if rows is None else min(-(-rows // size), limit)) if room else 0
    if not method.visits:
        capacity = min(_ROOM, machine.rule.limit or _ROOM) if room else 0
        return Learner(machine, empty(parts, dimension, outputs, capacity, dtype), batch_size, seed)
    examples = Examples(*(jax.device_put(np.zeros((capacity, size, *more), dtype)) for more in ((outputs,), ())))
    rounds = _ROUNDS_OF_ONE_BLOCK if rows is not None and rows <= size else _ROUNDS
    expansion = empty(parts, dimension, outputs, capacity, dtype)
    return LandmarkLearner(machine, expansion, batch_size, seed, examples, method.tol, rounds)


def in_precision(parts: Any, dtype: Any) -> Any:
    """Return a kernel or a loss in the precision of the machine: made outside its scope it may hold another."""
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, dtype)), parts)


@jax.jit
def _keys(seed: Any, counts: Any) -> Any:
    return jax.vmap(lambda count: jax.random.fold_in(jax.random.key(seed), count))(counts)


def _steps_at_once(rows: int) -> int:
    return 1 if rows >= _MANY_ROWS else _CHUNK


def _chunks(order: np.ndarray, size: int, steps: int) -> Iterator[np.ndarray]:
    """Split rows into chunks of so many whole batches, and the rest into single ones."""
    whole = len(order) // (size * steps) * size * steps
    for begin in range(0, whole, size * steps):
        yield order[begin : begin + size * steps]
    for begin in range(whole, len(order), size):
        yield order[begin : begin + size]
