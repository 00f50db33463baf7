"""What the kernel estimators have in common: everything but what targets mean."""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import clone
from sklearn.utils._param_validation import Interval, StrOptions

from thalweg import machines
from thalweg.kernels import Kernel
from thalweg.machines.losses import Loss
from thalweg.machines.settings import METHODS, METRICS, Method, Settings
from thalweg.models._common import Storable, settings_of, unharmed
from thalweg.models._inputs import row_weights, validated
from thalweg.rows import Table
from thalweg.runs import Run


@dataclass(repr=False, eq=False)
class KernelMachine(Storable):
    """Base of the kernel estimators: a subclass says what targets are, which loss they have, and how it predicts."""

    _true_tags: ClassVar[tuple[str, ...]] = ("input_tags.sparse",)
    _plain_bandwidth: ClassVar[float]
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "bandwidth": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "alpha": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "method": [StrOptions(set(METHODS)), Method],
        "metric": [StrOptions(set(METRICS))],
        "max_features": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [None, Interval(Integral, 1, None, closed="left")],
    }
    _machine: machines.FittedMachine = field(init=False)

    kernel: Kernel | type[Kernel] | str | None = None
    _: KW_ONLY
    bandwidth: float | str = "auto"
    metric: str = "auto"
    loss: Any = "squared"
    alpha: float | str = "auto"
    method: str | Method = "auto"
    max_features: int = 65_536
    max_iter: int | None = None
    warm_start: bool = False
    random_state: Any = None
    verbose: bool = False

    _loss: ClassVar[Callable[..., Loss]]
    """The loss, for the targets seen."""
    _targets: ClassVar[Callable[..., dict]]
    """``_targets(y, weights, first, classes, streams)`` are targets and weights as :class:`Table` has them; it decides
    on what the ``first`` rows decide."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
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
        with Run("stream", bar=bool(self.verbose)) as run:
            with unharmed(self):
                first = next(pairs, None)
                if first is None:
                    raise ValueError("batches must yield at least one pair (X, y), found none")
                self.__dict__.pop("_machine", None)
                X, y = _pair(first)
                self.partial_fit(X, y, **options)
                run.advance(len(y))
            for X, y in map(_pair, pairs):
                self.partial_fit(X, y)
                run.advance(len(y))
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_machine")

    def __getstate__(self) -> dict[str, Any]:
        # As NumPy arrays: JAX would make float64 arrays float32 when they are read outside of a scope.
        return jax.tree.map(_as_numpy, super().__getstate__())

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "_machine"):
            with jax.enable_x64(self._machine.double):
                self._machine = self._machine.mapped(jnp.asarray)

    def _learn(self, entry: Any, X: Any, y: Any, sample_weight: Any, classes: Any, anew: bool) -> Self:
        """Check arguments, go down by one of the entries of ``machines``, and store what comes back.

        If that fails, all is as it was.
        """
        self._validate_params()
        known = None if anew else getattr(self, "_machine", None)
        with unharmed(self):
            table = self._table(X, y, sample_weight, known is None, classes, streams=entry is machines.learn)
            known = None if known is None else self._machine  # which may have other targets now
            self._store(entry(table, self._settings(), self._seed(), known))
        return self

    def _settings(self) -> Settings:
        changed = {"passes": self.max_iter, "plain_bandwidth": self._plain_bandwidth, "progress": bool(self.verbose)}
        return settings_of(Settings, self, loss=self._loss(), **changed)

    def _store(self, machine: machines.FittedMachine) -> None:
        self._machine, metric = machine, machine.frame.metric
        self.kernel_, self.alpha_ = _kernel_of_raw_features(machine.kernel, metric), machine.alpha
        self.feature_scales_ = _feature_scales(machine.kernel, metric, self.n_features_in_)
        self.n_iter_, self.n_features_used_, self.history_ = machine.passes, machine.features, list(machine.history)

    def _table(self, X: Any, y: Any, sample_weight: Any, first: bool, classes: Any, streams: bool) -> Table:
        """Check examples and return those of positive weight."""
        X, y = validated(self, X, y, accept_sparse="csr", dtype="numeric", multi_output=True, reset=first)
        weights = row_weights(sample_weight, X)
        targets = self._targets(y, weights, first, classes, streams)
        weights = targets["weights"]
        if not np.any(weights > 0):
            raise ValueError("class_weight must leave a row of positive weight, found none")
        index = None
        if not np.all(weights > 0):
            # Rows are chosen when they are read: a memory map stays where it is.
            index = np.flatnonzero(weights > 0)
            targets |= {"targets": targets["targets"][index], "weights": weights[index]}
        single = np.finfo(np.float32)
        if np.any(lost := (weights > 0) & ((weights < single.tiny) | (weights > single.max))):
            raise ValueError(f"sample_weight must fit in float32, found values of size {weights[lost][0]:g}")
        return Table(X, index=index, **targets)

    def _values(self, X: Any) -> np.ndarray:
        """f at the rows of X."""
        rows = self._checked_rows(X, accept_sparse="csr", dtype="numeric")
        return self._machine.predict(rows)


def _kernel_of_raw_features(kernel: Kernel, metric: np.ndarray | None) -> Kernel:
    """The kernel with lengthscales in the units of the features as they came, where each has a scale of its own."""
    if metric is None or metric.ndim == 2:
        return kernel
    with jax.enable_x64(True):
        lengthscale = np.asarray(kernel.lengthscale, np.float64) / metric
        lengthscale = lengthscale[0] if np.all(lengthscale == lengthscale[0]) else lengthscale
        return clone(kernel).set_params(lengthscale=jnp.asarray(lengthscale))


def _feature_scales(kernel: Kernel, metric: np.ndarray | None, features: int) -> np.ndarray:
    """How much a unit of each feature counts in the distance, beside the one that counts most."""
    inverse = 1 / np.asarray(getattr(kernel, "lengthscale", 1.0), np.float64)
    if metric is not None:
        inverse = inverse * (metric if metric.ndim == 1 else np.linalg.norm(metric, axis=1))
    return np.broadcast_to(inverse / np.max(inverse), (features,)).copy()


def _as_numpy(node: Any) -> Any:
    if isinstance(node, machines.FittedMachine):
        return node.mapped(np.asarray)
    return np.asarray(node) if isinstance(node, jax.Array) else node


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise TypeError(f"batches must yield pairs (X, y), found {type(batch).__name__}{size}")
    return batch[0], batch[1]
