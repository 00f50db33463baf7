"""What the kernel estimators have in common: everything but what targets mean."""

import warnings
from collections.abc import Iterable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import Progress
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from thalweg import machines
from thalweg.kernels import Kernel
from thalweg.machines.losses import Loss
from thalweg.machines.methods import METHODS, METRICS, Method, Settings
from thalweg.machines.rows import Rows
from thalweg.models._common import Storable, row_weights, unharmed
from thalweg.models._frames import validated


class KernelMachine(Storable):
    """Base of the kernel estimators: a subclass says what targets are, which loss they have, and how it predicts."""

    _plain_bandwidth: ClassVar[float]
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "kernel": [Kernel, type, str, None],
        "bandwidth": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "alpha": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "method": [StrOptions(set(METHODS)), Method],
        "metric": [StrOptions(set(METRICS))],
        "max_features": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [None, Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    _machine: machines.Fitted
    _unit: float
    """What features are divided by before anything is learned from them; 1 but for extreme sizes."""

    def _loss(self) -> Loss:
        """The loss, for the targets seen."""
        raise NotImplementedError

    def _targets(self, y: np.ndarray, weights: np.ndarray, first: bool, classes: Any) -> dict[str, Any]:
        """Return targets as :class:`Rows` has them; ``first`` if what is known of them is to be learned anew."""
        raise NotImplementedError

    def _begin(self, y: np.ndarray, streams: bool, first: bool) -> None:
        """Decide on what the number of the ``first`` rows decides, or that they stream, before any is learned."""

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
        return self._learn(machines.fit, X, y, sample_weight, None, anew=not self.warm_start)

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
            with unharmed(self):
                first = next(pairs, None)
                if first is None:
                    raise ValueError("batches must yield at least one pair (X, y), found none")
                self.__dict__.pop("_machine", None)
                X, y = _pair(first)
                self.partial_fit(X, y, **options)
                bar.update(task, advance=len(y))
            for X, y in map(_pair, pairs):
                self.partial_fit(X, y)
                bar.update(task, advance=len(y))
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_machine")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        # As NumPy arrays: JAX would make float64 arrays float32 when they are read outside of a scope.
        return jax.tree.map(_as_numpy, super().__getstate__())

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "_machine"):
            with jax.enable_x64(self._machine.double):
                self._machine = self._machine.mapped(jnp.asarray)

    def _learn(self, entry: Any, X: Any, y: Any, sample_weight: Any, classes: Any, anew: bool) -> "KernelMachine":
        """Check arguments, go down by one of the entries of ``machines``, and store what comes back.

        If that fails, all is as it was.
        """
        self._validate_params()
        known = None if anew else getattr(self, "_machine", None)
        with unharmed(self):
            rows = self._rows(X, y, sample_weight, known is None, classes, streams=entry is machines.learn)
            known = None if known is None else self._machine  # which may be in other units now
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            self._store(entry(rows, self._settings(), seed, known))
        line: dict[str, float] = self.history_[-1] if self.history_ else {}
        left, tol = line.get("left", 0.0), getattr(self._settings().method, "tol", 0.0)
        if left > tol and "interrupted" not in line:  # who interrupts has been told
            warnings.warn(
                f"the optimum was not reached: a further step would lower the objective by {left:.1g} of it, more than "
                f"tol={tol:g} of the method. A larger alpha makes the problem easier",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self

    def _settings(self) -> Settings:
        alike = ("bandwidth", "metric", "alpha", "method", "max_features")
        return Settings(
            loss=self._loss(),
            kernel=self.kernel,
            passes=self.max_iter,
            plain_bandwidth=self._plain_bandwidth,
            progress=bool(self.verbose),
            **{name: getattr(self, name) for name in alike},
        )

    def _store(self, found: machines.Fitted) -> None:
        self._machine = found
        self.kernel_, self.alpha_ = _in_units(found.kernel, self._unit), found.alpha
        self.feature_scales_ = _feature_scales(found.kernel, found.map, self.n_features_in_)
        self.n_iter_, self.n_features_used_, self.history_ = found.passes, found.features, list(found.history)

    def _rows(self, X: Any, y: Any, sample_weight: Any, first: bool, classes: Any, streams: bool) -> Rows:
        """Check examples and return those of positive weight."""
        self._check_kinds(y, classes)
        X, y = validated(
            self, X, y, accept_sparse="csr", dtype="numeric", multi_output=True, ensure_min_samples=1, reset=first
        )
        weights = row_weights(sample_weight, X)
        self._begin(y[weights > 0], streams, first)
        targets = self._targets(y, weights, first, classes)
        weights = weights * self._class_weights(y)
        if not np.any(weights > 0):
            raise ValueError("class_weight must leave a row of positive weight, found none")
        places = None
        if not np.all(weights > 0):
            # Chosen when they are read: a memory map stays where it is.
            places = np.flatnonzero(weights > 0)
            targets["targets"], weights = targets["targets"][places], weights[places]
        single = np.finfo(np.float32)
        if np.any(lost := (weights < single.tiny) | (weights > single.max)):
            raise ValueError(f"sample_weight must fit in float32, found values of size {weights[lost][0]:g}")
        rows = Rows(X, weights=weights, places=places, **targets)
        if first:
            self._unit = 1.0 if isinstance(self.kernel, Kernel) else rows.unit()
        return rows if self._unit == 1 else replace(rows, x=X / self._unit)

    def _values(self, X: Any) -> np.ndarray:
        """f at the rows of X."""
        check_is_fitted(self)
        X = validated(self, X, accept_sparse="csr", dtype="numeric", reset=False)
        return self._machine.predict(X if self._unit == 1 else X / self._unit)


def _feature_scales(kernel: Kernel, turned: np.ndarray | None, features: int) -> np.ndarray:
    """How much a unit of each feature counts in the distance, beside the one that counts most."""
    inverse = 1 / np.asarray(getattr(kernel, "lengthscale", 1.0), np.float64)
    if turned is not None:
        inverse = np.linalg.norm(turned * inverse, axis=1)
    return np.broadcast_to(inverse / np.max(inverse), (features,)).copy()


def _in_units(kernel: Kernel, unit: float) -> Kernel:
    """The kernel for features that are ``unit`` times as large."""
    if unit == 1:
        return kernel
    with jax.enable_x64(True):
        length: Any = lambda kernel: kernel.lengthscale
        return eqx.tree_at(length, kernel, jnp.asarray(unit * np.asarray(length(kernel), np.float64)))


def _as_numpy(node: Any) -> Any:
    if isinstance(node, machines.Fitted):
        return node.mapped(np.asarray)
    return np.asarray(node) if isinstance(node, jax.Array) else node


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise TypeError(f"batches must yield pairs (X, y), found {type(batch).__name__}{size}")
    return batch[0], batch[1]
