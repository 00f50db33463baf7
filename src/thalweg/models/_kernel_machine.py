"""What the kernel estimators have in common: everything but what targets mean."""

import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import Progress
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from thalweg.arguments import number, whole
from thalweg.kernels import Kernel
from thalweg.machines.learners import Learner
from thalweg.machines.rows import Rows
from thalweg.models import _machine_file
from thalweg.models._common import row_weights, unharmed
from thalweg.models._machine_choice import ENOUGH_ROWS, Chosen, Trial, choose
from thalweg.models._machine_parts import Words, checked_words, make_learner
from thalweg.oracles.losses import Loss

# Passes over the data where none are given: a pass over many rows is worth several over few.
_PASSES, _FEW_ROWS = 10, 20_000
# Held out to stop early, at most.
_MOST_HELD_OUT = 5000
_ROWS_AT_ONCE = 2048
# What a learner learns and a history records changes in place.
_CHANGING = ("_learner", "history_")
_TOO_LARGE = "X or y leads to values beyond the range of numbers: look for features or targets of extreme size"


class KernelMachine(BaseEstimator):
    """Base of the kernel estimators: a subclass says what targets are, which loss they have, and how it predicts."""

    _plain_multiplier: float
    _double: bool
    _learner: Learner

    def _loss(self) -> Loss:
        """The loss, for the targets seen."""
        raise NotImplementedError

    def _targets(
        self, y: np.ndarray, weights: np.ndarray, first: bool, classes: Any
    ) -> tuple[np.ndarray, np.ndarray | None, int]:
        """Return targets, the table of labels if they are labels, and the number of outputs; ``first`` if new."""
        raise NotImplementedError

    def _misses(self, found: np.ndarray, rows: Rows) -> float:
        """How far predictions are from the targets, in the units users know."""
        raise NotImplementedError

    def _check_kinds(self, y: Any, classes: Any) -> None:
        """Check targets as they came, before they are an array of one type."""

    def _class_weights(self, y: np.ndarray) -> np.ndarray | float:
        return 1.0

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "KernelMachine":
        """Learn from all rows; what was learned before is forgotten unless ``warm_start``.

        Parameters
        ----------
        X
            Features: an array, a memory map (which is read batch by batch) or a SciPy sparse matrix.
        y
            Targets.
        sample_weight
            Weights of the rows; a weight of 2 is the row twice.
        """
        words = checked_words(self)
        passes = None if self.max_iter is None else whole("max_iter", self.max_iter)
        warm = bool(self.warm_start) and hasattr(self, "_learner")
        with unharmed(self, _CHANGING):
            rows, outputs = self._rows(X, y, sample_weight, first=not warm, classes=None)
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            self._double = self._double if warm else len(rows) <= words.block_size
            with jax.enable_x64(self._double):
                if not warm:
                    self._begin(words, rows, outputs, len(rows), seed)
                passes = self._passes(words, len(rows)) if passes is None else passes
                self._pass_over(rows, passes, seed)
        return self

    def partial_fit(self, X: Any, y: Any, **options: Any) -> "KernelMachine":
        """Learn from more rows."""
        raise NotImplementedError

    def fit_stream(self, batches: Iterable[tuple[Any, Any]], **options: Any) -> "KernelMachine":
        """Learn from an iterable of (X, y) that need not fit in memory, each seen once.

        Parameters
        ----------
        batches
            Pairs of features and targets; the first should be large enough to choose a lengthscale by, 2,000 rows say.
        **options
            Passed to the first :meth:`partial_fit`, such as ``classes``.
        """
        if not isinstance(batches, Iterable):
            raise TypeError(f"batches must be an iterable of pairs (X, y), found {batches!r}")
        pairs = iter(batches)
        with Progress(disable=not self.verbose) as bar:
            task = bar.add_task("rows", total=None)
            with unharmed(self, _CHANGING):
                first = next(pairs, None)
                if first is None:
                    raise ValueError("batches must yield at least one pair (X, y), found none")
                self.__dict__.pop("_learner", None)
                X, y = _pair(first)
                self.partial_fit(X, y, **options)
                bar.update(task, advance=len(y))
            for X, y in map(_pair, pairs):
                self.partial_fit(X, y)
                bar.update(task, advance=len(y))
        return self

    def save(self, path: Any) -> None:
        """Write the fitted model to one file, from which :meth:`load` reads it without running any code."""
        check_is_fitted(self)
        _machine_file.save(self, path)

    @classmethod
    def load(cls, path: Any) -> "KernelMachine":
        """Read a model that :meth:`save` wrote; it predicts and goes on learning as the original would."""
        return _machine_file.load(cls, path)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_learner")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        # As NumPy arrays: JAX would make float64 arrays float32 when they are read outside of a scope.
        return jax.tree.map(_as_numpy, super().__getstate__(), is_leaf=lambda node: isinstance(node, Learner))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "_learner"):
            with jax.enable_x64(self._double):
                self._learner = self._learner.mapped(jnp.asarray)

    def _learn_more(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> "KernelMachine":
        words = checked_words(self)
        first = not hasattr(self, "_learner")
        with unharmed(self, _CHANGING):
            rows, outputs = self._rows(X, y, sample_weight, first=first, classes=classes)
            if first:
                self._double = False
            with jax.enable_x64(self._double):
                if first:
                    seed = int(check_random_state(self.random_state).randint(2**31 - 1))
                    self._begin(words, rows, outputs, None, seed)
                elif self._loss() != (known := self._learner.machine.loss):
                    raise ValueError(
                        f"loss and its parameters must stay what the model has learned with ({type(known).__name__}), "
                        f"found loss={self.loss!r} or parameters that differ: set them back, or fit anew"
                    )
                began = time.perf_counter()
                self._seen += float(np.sum(rows.weights))
                for _ in self._learner.learn(rows, np.arange(len(rows)), self.alpha_, self._seen):
                    pass
                if not _finite(self._learner):
                    raise ValueError(f"{_TOO_LARGE}. The model is as it was before")
            self._record(self.n_iter_, len(rows), began, None)
        return self

    def _rows(self, X: Any, y: Any, sample_weight: Any, first: bool, classes: Any) -> tuple[Rows, int]:
        """Check examples and return those of positive weight."""
        self._check_kinds(y, classes)
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype="numeric", multi_output=True, ensure_min_samples=1, reset=first
        )
        weights = row_weights(sample_weight, X)
        targets, table, outputs = self._targets(y, weights, first, classes)
        weights = weights * self._class_weights(y)
        if not np.any(weights > 0):
            raise ValueError("class_weight must leave a row of positive weight, found none")
        if np.all(weights > 0):
            return Rows(X, targets, weights, table), outputs
        # Chosen when they are read: a memory map stays where it is.
        kept = np.flatnonzero(weights > 0)
        return Rows(X, targets[kept], weights[kept], table, kept), outputs

    def _begin(self, words: Words, rows: Rows, outputs: int, total: int | None, seed: int) -> None:
        """Choose a kernel and a ridge, and start with the function 0."""
        dtype = np.float64 if self._double else np.float32
        loss, dimension = self._loss(), self.n_features_in_
        learner = lambda kernel, total: make_learner(words, kernel, loss, dimension, outputs, total, seed, dtype)
        trial = Trial(learner, self._mean_loss, loss.curvature)
        chosen = self._choose(rows, words.max_features, trial, seed, dtype)
        self.kernel_, self.alpha_ = chosen
        self._learner = learner(chosen.kernel, total)
        self._seen, self.n_iter_ = 0.0, 0
        self._shape = outputs, total
        self.history_: list[dict[str, float]] = []

    def _choose(self, rows: Rows, features: int, trial: Trial, seed: int, dtype: Any) -> Chosen:
        kernel = self.kernel
        if not (
            kernel is None or isinstance(kernel, Kernel) or (isinstance(kernel, type) and issubclass(kernel, Kernel))
        ):
            raise TypeError(
                f"kernel must be a kernel such as Gaussian(2.0), a class of kernels such as Matern32, or None, "
                f"found {kernel!r}"
            )
        for name, value in (("bandwidth", self.bandwidth), ("alpha", self.alpha)):
            if not (isinstance(value, str) and value == "auto"):
                try:
                    number(name, value, above=0)
                except (TypeError, ValueError) as error:
                    raise type(error)(f"{name} must be a positive number or 'auto', found {value!r}") from None
        return choose(kernel, self.bandwidth, self.alpha, self._plain_multiplier, rows, features, trial, seed, dtype)

    def _passes(self, words: Words, rows: int) -> int:
        """One pass where landmarks see many rows, or where there is one block of them, which one visit solves."""
        one_block = rows <= min(words.block_size, words.max_features)
        return 1 if words.visits and (rows > _FEW_ROWS or one_block) else _PASSES

    def _pass_over(self, rows: Rows, passes: int, seed: int) -> None:
        """Make passes until the held-out slice says that they no longer help."""
        order = np.random.default_rng([seed, 2]).permutation(len(rows))
        held = self._held_out(rows, passes)
        held_rows = None if held is None else rows.subset(np.sort(order[:held]))
        order = order if held is None else order[held:]
        total = self._seen = float(np.sum(rows.weights))
        best, best_loss, stale = self._learner.expansion, np.inf, 0
        try:
            with Progress(disable=not self.verbose) as bar:
                for number_of_pass in range(passes):
                    began = time.perf_counter()
                    task = bar.add_task(f"pass {number_of_pass + 1}", total=len(order))
                    learn = self._learner.learn if number_of_pass == 0 else self._learner.again
                    for done in learn(rows, order, self.alpha_, total):
                        bar.update(task, advance=done)
                    loss = self._record(self.n_iter_ + 1, len(order), began, held_rows)
                    self.n_iter_ += 1
                    if held_rows is None:
                        continue
                    stale = 0 if loss < best_loss * (1 - self._improvement) else stale + 1
                    if loss < best_loss:
                        best, best_loss = self._learner.expansion, loss
                    if stale == 2:
                        break
        except KeyboardInterrupt:
            self.n_features_used_ = self._learner.features
            warnings.warn(
                f"interrupted in pass {self.n_iter_ + 1} of {passes}: the model keeps what it has learned so far",
                stacklevel=3,
            )
            return
        if held_rows is not None:
            self._learner.expansion = best
        if not _finite(self._learner):
            raise ValueError(_TOO_LARGE)

    _improvement = 0.01
    """A pass that lowers the held-out loss by less, twice in a row, is the last one."""

    def _held_out(self, rows: Rows, passes: int) -> int | None:
        wanted = self.early_stopping
        if not (isinstance(wanted, bool | np.bool_) or wanted == "auto"):
            raise ValueError(f"early_stopping must be True, False or 'auto', found {wanted!r}")
        fraction = float(number("validation_fraction", self.validation_fraction, above=0, below=1))
        if wanted == "auto":
            wanted = passes > 1 and len(rows) >= ENOUGH_ROWS
        held = min(int(fraction * len(rows)), _MOST_HELD_OUT)
        return held if wanted and held > 0 else None

    def _record(self, passes: int, rows: int, began: float, held: Rows | None) -> float:
        """Write a line of the history, and return the loss on the rows held out."""
        jax.block_until_ready(self._learner.expansion)
        seconds = time.perf_counter() - began
        line = {"pass": passes, "rows": rows, "seconds": seconds, "features": self._learner.features}
        if held is not None:
            found = self._learner.predict(held.features(slice(None), self._learner.dtype))
            line |= {"held_out_loss": self._mean_loss(found, held), "held_out_score": self._misses(found, held)}
        self.history_.append(line)
        self.n_features_used_ = self._learner.features
        return line.get("held_out_loss", np.nan)

    def _mean_loss(self, found: np.ndarray, rows: Rows) -> float:
        targets = rows.targets if rows.table is None else rows.table[rows.targets]
        values = self._loss().value(jnp.asarray(found), jnp.asarray(targets, found.dtype))
        return float(np.average(np.asarray(values), weights=rows.weights))

    def _values(self, X: Any) -> np.ndarray:
        """f at the rows of X, some thousand rows at a time."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype="numeric", reset=False)
        rows = Rows(X, np.empty(0), np.ones(X.shape[0]))
        with jax.enable_x64(self._double):
            return np.concatenate(
                [self._learner.predict(rows.features(part, self._learner.dtype)) for part in _parts(len(rows))]
            )


def _finite(learner: Learner) -> bool:
    return bool(jnp.isfinite(jnp.sum(learner.expansion.weights)))


def _as_numpy(node: Any) -> Any:
    if isinstance(node, Learner):
        return node.mapped(np.asarray)
    return np.asarray(node) if isinstance(node, jax.Array) else node


def _parts(rows: int) -> Iterator[slice]:
    for begin in range(0, rows, _ROWS_AT_ONCE):
        yield slice(begin, min(begin + _ROWS_AT_ONCE, rows))


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(f"batches must yield pairs (X, y), found {type(batch).__name__}")
    return batch[0], batch[1]
