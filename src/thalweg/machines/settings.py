"""Methods by which a kernel machine learns, and the settings of a fit.

``method=`` of the estimators takes a word, "auto", "dsg", "udsg" or "cdsg", or an object of this module that also has
the options of that method, such as ``UDSG(periods=(2, 1), step=0.5)``.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from thalweg.arguments import flag, instance, number, one_of, whole
from thalweg.codec import storable
from thalweg.descent.steps import Polynomial, as_step
from thalweg.kernels import Gaussian, Kernel, Matern12, Matern32, Matern52, kernel_or_class
from thalweg.machines.doubly_stochastic import Capped, Checked, New, Rule, Uniform
from thalweg.machines.expansion import FEATURES, Coordinates
from thalweg.machines.functional_gradient import Machine, ValidatedStep
from thalweg.machines.losses import Loss

__all__ = ["CDSG", "DSG", "UDSG", "Auto", "Method", "Settings"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """Options that all methods have; a subclass says along which blocks steps go, and how far.

    Parameters
    ----------
    block_size
        Landmarks or frequencies in a block. Up to so many rows are solved in float64.
    features
        "landmarks" (training rows), or a kind of random frequencies: "random", "orthogonal", "quasi".
    batch_size
        Rows of a step along a block; by default four for each feature of the block.
    step
        A number or a schedule, for steps along blocks.
    keep_frequencies
        Keep random frequencies in memory instead of making them anew for every batch, however many there are.
    early_stopping
        Stop when further passes do not lower the loss on a validation set, and return to the best. "auto" does so
        where there is more than one pass; True makes passes even where all rows could be solved for at once.
    validation_fraction
        The share of the validation set, of at most 2,048 rows.
    double
        Work in float64 however many rows there are; streams and more rows than a block are in float32 otherwise.

    Examples
    --------
    >>> isinstance(Auto(), Method), isinstance(DSG(), Method)
    (True, True)
    """

    block_size: int = 2048
    features: str = "random"
    batch_size: int | None = None
    step: Any = None
    keep_frequencies: bool = False
    early_stopping: bool | str = "auto"
    validation_fraction: float = 0.1
    double: bool = False

    capped: ClassVar[bool] = False
    """Whether the number of features has a limit."""

    def __post_init__(self) -> None:
        whole(self._name("block_size"), self.block_size)
        one_of(self._name("features"), self.features, FEATURES)
        if self.batch_size is not None:
            whole(self._name("batch_size"), self.batch_size)
        if self.step is not None:
            self._schedule()
        flag(self._name("keep_frequencies"), self.keep_frequencies)
        flag(self._name("double"), self.double)
        if not (isinstance(self.early_stopping, bool | np.bool_) or self.early_stopping == "auto"):
            raise ValueError(
                f"{self._name('early_stopping')} must be True, False or 'auto', found {self.early_stopping!r}"
            )
        number(self._name("validation_fraction"), self.validation_fraction, above=0, below=1)

    @property
    def updates_blocks(self) -> bool:
        """Whether blocks of landmarks are solved for from their own rows, instead of stepped along."""
        return False

    def machine(self, coordinates: Coordinates, loss: Loss, limit: int) -> Machine:
        """Return the parts of a step; ``limit`` is the most blocks, where the method is capped."""
        raise NotImplementedError(f"{type(self).__name__} must define machine(coordinates, loss, limit)")

    def _name(self, parameter: str) -> str:
        return f"{parameter} of {type(self).__name__}"

    def _schedule(self) -> Any:
        step = as_step(self.step)
        if not hasattr(step, "size"):
            raise TypeError(f"{self._name('step')} must be a number or a schedule count -> size, found {self.step!r}")
        return step


@storable
@dataclass(frozen=True, kw_only=True)
class Auto(Method):
    """Landmarks, each block of them solved for from its own rows; when there is room for no more, rows refine them.

    With random frequencies instead of landmarks, new blocks are stepped along until there is room for no more.
    Without a ``step`` half of the rows of a batch propose a direction and the others validate how far to go.

    Parameters
    ----------
    tol
        Accuracy of a block's own rows, where the number of rounds allows it; where all rows are solved for at once, the
        share of the objective that a further step may still gain.
    **others
        As in :class:`Method`.

    Examples
    --------
    >>> Auto(tol=1e-6).updates_blocks
    True
    """

    features: str = "landmarks"
    tol: float = 1e-4

    capped: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        number(self._name("tol"), self.tol, least=0)

    @property
    def updates_blocks(self) -> bool:
        """Whether they are landmarks."""
        return self.features == "landmarks"

    def machine(self, coordinates: Coordinates, loss: Loss, limit: int) -> Machine:
        """Steps along new blocks up to the limit, then along old ones."""
        step = ValidatedStep() if self.step is None else self._schedule()
        return Machine(coordinates, loss, Capped(limit), step, jax.device_put(0.0))


@storable
@dataclass(frozen=True, kw_only=True)
class DSG(Method):
    """Doubly stochastic gradients: steps along new random features, Algorithm 1 of Li and Póczos (2017).

    Parameters
    ----------
    precondition
        Whether steps are preconditioned by the curvature of their block on the batch. Without a ``step`` theirs fall as
        1/√t.
    **others
        As in :class:`Method`.

    Examples
    --------
    >>> DSG(step=0.5, precondition=False).rule()
    New()
    >>> DSG(features="waves")
    Traceback (most recent call last):
        ...
    ValueError: features of DSG must be one of 'landmarks', 'random', 'orthogonal', 'quasi', found 'waves'
    """

    precondition: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        flag(self._name("precondition"), self.precondition)
        self.rule()

    def rule(self) -> Rule:
        """Which block a step goes along."""
        return New()

    def machine(self, coordinates: Coordinates, loss: Loss, limit: int) -> Machine:
        """Steps along the blocks of the rule, however many."""
        if self.step is not None:
            step = self._schedule()
        else:
            # A preconditioned step of size 1 would solve for the block on this batch; steps that fall as 1/√t average
            # batches. Without a preconditioner 1/L is the longest step that does not overshoot.
            step = Polynomial(0.5 if self.precondition else 1 / loss.curvature, power=0.5, scale=10.0)
        return Machine(coordinates, loss, self.rule(), step, jax.device_put(0.0), bool(self.precondition))


@storable
@dataclass(frozen=True, kw_only=True)
class UDSG(DSG):
    """DSG that also steps along old blocks, drawn uniformly: Algorithm 3 of Li and Póczos (2017).

    Parameters
    ----------
    periods
        (G, U): G steps along new blocks, then U along old ones.
    **others
        As in :class:`DSG`.

    Examples
    --------
    >>> UDSG(periods=(2, 3)).rule()
    Uniform(new=2, old=3)
    """

    periods: tuple[int, int] = (1, 1)

    def rule(self) -> Rule:
        """New blocks and old ones by turns."""
        if not isinstance(self.periods, tuple | list) or len(self.periods) != 2:
            raise TypeError(f"periods of UDSG must be a pair (G, U) of whole numbers, found {self.periods!r}")
        return Uniform(*self.periods)


@storable
@dataclass(frozen=True, kw_only=True)
class CDSG(DSG):
    """DSG that takes an old block where a longer step along it is safe: Algorithm 4 of Li and Póczos (2017), corrected.

    Parameters
    ----------
    stretch
        How many times longer than a plain step the step along an old block may be.
    **others
        As in :class:`DSG`.

    Examples
    --------
    >>> CDSG(stretch=3.0).rule()
    Checked(stretch=3.0)
    """

    stretch: float = 10.0

    def rule(self) -> Rule:
        """The old block with the longest safe step, or a new one."""
        return Checked(self.stretch)


FAMILIES = (Gaussian, Matern52, Matern32, Matern12)
"""Families to choose from where no kernel is given, from the smoothest functions to the roughest."""

METRICS = ("auto", "none", "diagonal", "full")
"""Values of ``metric``."""

METHODS: dict[str, type[Method]] = {"auto": Auto, "dsg": DSG, "udsg": UDSG, "cdsg": CDSG}
"""Methods by their words."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of :func:`thalweg.machines.fit` besides the rows.

    Parameters
    ----------
    loss
        A loss that fits the targets.
    rival
        A loss of probabilities that :func:`~thalweg.machines.fit` takes instead of the squared one, for codes of −1 and
        1, where it predicts labels better.
    kernel
        A kernel; or a class of them, whose lengthscale is ``bandwidth`` times the median distance between rows; None
        chooses among the :attr:`families`.
    bandwidth, alpha
        That multiplier, and the ridge of Σ ℓ + alpha/2·‖f‖². "auto" searches for them, from ``plain_bandwidth`` and
        0.01.
    metric
        "auto" proposes scales of the features by the gradients of the candidates, and takes them where validation rows
        are predicted better; "diagonal" takes them without a comparison, "full" learns a linear map, "none" nothing.
        For a kernel with a lengthscale it is "none".
    method, max_features
        A method or its word, and the most features of :class:`Auto`.
    passes
        Passes over the data. None solves for all rows at once where their kernel matrix fits in memory and the loss is
        smooth, and makes up to ten passes over blocks otherwise.
    progress
        Whether to show a progress bar.

    Examples
    --------
    >>> from thalweg.machines import SquaredLoss
    >>> Settings(loss=SquaredLoss(), method="udsg").method.periods
    (1, 1)
    """

    loss: Loss
    rival: Loss | None = None
    kernel: Any = None
    bandwidth: float | str = "auto"
    metric: str = "auto"
    alpha: float | str = "auto"
    method: Any = "auto"
    max_features: int = 65_536
    passes: int | None = None
    plain_bandwidth: float = 1.0
    progress: bool = False

    def __post_init__(self) -> None:
        instance("loss", self.loss, Loss, "SquaredLoss()")
        instance("rival", self.loss if self.rival is None else self.rival, Loss, "LogisticLoss()")
        if self.kernel is not None:
            object.__setattr__(self, "kernel", kernel_or_class(self.kernel, stationary=True))
        one_of("metric", self.metric, METRICS)
        if self.metric in ("diagonal", "full") and isinstance(self.kernel, Kernel):
            raise ValueError(
                f"metric={self.metric!r} learns lengthscales, and kernel={self.kernel} has them: give its class, such "
                f"as {type(self.kernel).__name__}"
            )
        if self.metric == "full" and self.kernel not in (None, *FAMILIES):
            raise ValueError(f"metric='full' is for Gaussian and Matern kernels, found kernel={self.kernel.__name__}")
        for name in ("bandwidth", "alpha"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value == "auto"):
                number(name, value, above=0)
        whole("max_features", self.max_features)
        if self.passes is not None:
            whole("passes", self.passes)
        if not isinstance(self.method, Method):
            object.__setattr__(self, "method", METHODS[one_of("method", self.method, METHODS)]())

    @property
    def block_size(self) -> int:
        """Landmarks or frequencies in a block."""
        return int(self.method.block_size)

    @property
    def families(self) -> tuple[Any, ...]:
        """The families to choose from: the kernel given, or four families."""
        return FAMILIES if self.kernel is None else (self.kernel,)
