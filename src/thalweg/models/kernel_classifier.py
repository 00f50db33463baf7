"""Kernel classification that streams."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import compute_sample_weight
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from thalweg import machines
from thalweg.arguments import number
from thalweg.machines.losses import Loss
from thalweg.machines.settings import Settings
from thalweg.models._inputs import check_one_type
from thalweg.models._kernel_machine import KernelMachine
from thalweg.rows import predicted_labels

_LOSSES: dict[str, type[Loss]] = {
    "logistic": machines.LogisticLoss,
    "hinge": machines.HingeLoss,
    "squared_hinge": machines.SquaredHingeLoss,
    "squared": machines.SquaredLoss,
}

# Where the largest class leaves no more rows to the others the loss "auto" is the logistic one: squares rank rows of a
# rare class worse (180 of 30,000 rows: an area under the curve of 0.85 instead of 0.97). Twice as many gain little.
_FEW_ROWS = 256


@dataclass(repr=False, eq=False, kw_only=True)
class KernelClassifier(ClassifierMixin, KernelMachine):
    """Classification by a kernel machine that learns block by block, in memory for its features and one batch.

    By default rows become landmarks. For a smooth loss all of them are solved for at once, by Newton steps on their
    kernel matrix, as long as that fits in a quarter of the memory; for more rows, streams and the hinge, each block of
    rows is solved for with all others held fixed, which after one pass is close to it. With ``method`` "dsg", "udsg" or
    "cdsg" it is the doubly stochastic method of the papers on random features, with new coordinates in each step,
    uniformly drawn old ones, or checked ones.

    Parameters
    ----------
    kernel
        A stationary kernel from :mod:`thalweg.kernels`, in units of the features as they are; or a class of them or its
        name ("rbf", "matern32", …), whose lengthscale is ``bandwidth`` times the median distance between rows. None
        chooses among :class:`~thalweg.kernels.Gaussian` and the Matérn kernels 5/2, 3/2 and 1/2.
    bandwidth
        That multiplier. "auto" searches for it, with the family, the metric and ``alpha``: candidates are compared
        by rows left out.
    metric
        Units of the features in which distances are taken. "none": one unit for all, or each feature's standard
        deviation, whichever errs less on rows left out. "diagonal": learned, a feature counting as much as a
        function fitted first changes along it. "full": directions are learned as well, a linear map. "auto": units are
        learned where rows left out say that it helps. A kernel with a lengthscale is taken as it is.
    loss
        "logistic" (of several classes: softmax), "hinge", "squared_hinge" or "squared"; the last three are one class
        against the rest. Probabilities are calibrated by rows left out. The first and the last have an intercept, so
        that far from all rows the probabilities are the classes' shares, or about them. "auto" is the logistic loss
        where the largest class leaves few rows to the others (256 or less), for streams and for other methods than
        "auto"; else the squared one, which is solved in fewer steps, unless the logistic one gives the labels of rows
        left out more probability (of three classes or more, up to 8,192 rows times classes).
    alpha
        The ridge of Σ ℓ + alpha/2·‖f‖². "auto" searches for it as for ``bandwidth``.
    method
        "auto", "dsg", "udsg" or "cdsg", or an object that says more: :class:`~thalweg.machines.Auto`,
        :class:`~thalweg.machines.DSG`, :class:`~thalweg.machines.UDSG`, :class:`~thalweg.machines.CDSG` take the step,
        the sizes of blocks and batches, the kind of features, the tolerance and how to stop early.
    max_features
        The most features of the method "auto"; further rows refine those there are.
    class_weight
        None, "balanced", or a dict of weights of classes. For ``partial_fit``, a dict.
    max_iter
        Passes over the data, block by block. By default rows are solved for at once where that can be (as above); else
        up to ten passes are made over ``max_features`` rows of a loss that is not smooth, and one in all other cases.
    warm_start
        Whether ``fit`` goes on from what was learned before.
    random_state
        Seeds the order of the rows, the features and the slices held out.
    verbose
        Show the kernel and the ridge in use, and a progress bar.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
        As in scikit-learn.
    loss_ : str
        The loss in use.
    kernel_ : Kernel
        The kernel in use, in units of the features as they are; with ``metric="full"``, of the features mapped.
    alpha_ : float
        The ridge in use.
    feature_scales_ : ndarray
        How much a unit of each feature counts in the distance, beside the one that counts most; times the features'
        standard deviations it says which of them matter.
    n_iter_ : int
        Passes made, Newton steps where rows are solved for at once, or conjugate gradients.
    n_features_used_ : int
        Features in use.
    history_ : list of dict
        A line for each pass: rows, seconds, features, and the loss and score on the rows held out; for each Newton step
        the objective, the part of it that further steps would gain, and products with the kernel matrix.

    Notes
    -----
    One block of rows, and a ridge that float32 would lose, are computed in float64; more rows, and streams, in float32.
    Before that the median of some of the first rows is subtracted from the features, in float64: their distance from
    the origin does not matter.

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg import KernelClassifier
    >>> X = np.linspace(-1, 1, 20)[:, None]
    >>> model = KernelClassifier().fit(X, X[:, 0] > 0)
    >>> model.predict([[-0.5], [0.5]])
    array([False,  True])
    """

    _plain_bandwidth = 0.5
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "loss": [StrOptions({"auto", *_LOSSES})],
        "class_weight": [None, dict, StrOptions({"balanced"})],
    }

    loss: str = "auto"
    class_weight: Any = None

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> "KernelClassifier":
        """Learn from more rows, each seen once; the first call decides on the kernel, its units and the ridge.

        It should have 80 rows or more of the kind that will come, better 2,000: what it says of the features stays.

        Parameters
        ----------
        X, y, sample_weight
            As in ``fit``.
        classes
            All classes there will be; needed in the first call unless its ``y`` holds them all.
        """
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight must be None or a dict for partial_fit, which does not see all rows at once, "
                f"found {self.class_weight!r}"
            )
        return self._learn(machines.learn, X, y, sample_weight, classes, anew=False)

    def decision_function(self, X: Any) -> np.ndarray:
        """The values of the classes' functions; with two classes, that of the second one."""
        found = self._decisions(X)
        return found[:, 0] if found.shape[1] == 1 else found

    def predict(self, X: Any) -> np.ndarray:
        """The classes of the largest values."""
        labels = predicted_labels(self._decisions(X))
        return self.classes_[labels]

    @available_if(lambda self: _has_probabilities(self))
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, calibrated by rows that were left out in ``fit``.

        By a factor (temperature scaling) and a shift for each class. The margins of other losses than the logistic one
        do not have the shift: where two classes are nearly even ``predict`` may choose the other one, as SVC does. A
        stream leaves no rows out: its probabilities are those of the logistic loss, and other losses have none.
        """
        values = self._values(X)
        found = self._machine.logits(values)
        if found.shape[1] == 1:
            return np.stack([expit(-found[:, 0]), expit(found[:, 0])], axis=1)
        return softmax(found, axis=1)

    def _decisions(self, X: Any) -> np.ndarray:
        """The calibrated log-odds of the logistic loss, and the margins of others."""
        found = self._values(X)
        return self._machine.logits(found) if self.loss_ == "logistic" else found

    def _loss(self) -> Loss:
        return self._logistic() if self.loss_ == "logistic" else _LOSSES[self.loss_]()

    def _logistic(self) -> Loss:
        return machines.SoftmaxLoss() if len(self.classes_) > 2 else machines.LogisticLoss()

    def _settings(self) -> Settings:
        rivals = self.loss == "auto" and self.loss_ == "squared"
        return replace(super()._settings(), rival=self._logistic() if rivals else None)

    def _store(self, machine: machines.FittedMachine) -> None:
        super()._store(machine)
        if machine.learner.machine.loss.probabilistic:
            self.loss_ = "logistic"

    def _targets(self, y: np.ndarray, weights: np.ndarray, first: bool, classes: Any, streams: bool) -> dict:
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if self.loss != "auto":
            self.loss_ = self.loss
        elif first:
            method = Settings(loss=machines.SquaredLoss(), method=self.method).method
            counts = np.unique(y[weights > 0], return_counts=True)[1]
            squared = method.updates_blocks and np.sum(counts) - np.max(counts) > _FEW_ROWS and not streams
            self.loss_ = "squared" if squared else "logistic"
        check_one_type("classes", classes)
        if first:
            self.classes_ = np.unique(y if classes is None else np.asarray(classes))
            if len(self.classes_) < 2:
                hint = "; partial_fit takes all there will be as classes" if classes is None else ""
                raise ValueError(
                    f"y must hold at least two classes, found one class: {self.classes_.tolist()[0]!r}{hint}"
                )
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes must be those of the first call, {_shown(self.classes_)}, found {classes!r}")
        alike = (y.dtype.kind in "OSU") == (self.classes_.dtype.kind in "OSU")
        unseen = np.setdiff1d(y, self.classes_) if alike else y
        if len(unseen):
            raise ValueError(f"y must hold known classes, {_shown(self.classes_)}, found {unseen.tolist()[0]!r}")
        several = len(self.classes_) > 2
        codes = np.eye(len(self.classes_)) if several else np.array([[0.0], [1.0]])
        if self.loss_ != "logistic":
            codes = 2 * codes - 1
        labels = np.searchsorted(self.classes_, y)
        return {"targets": labels, "codes": codes, "weights": weights * self._class_weights(labels)}

    def _class_weights(self, labels: np.ndarray) -> np.ndarray | float:
        given = self.class_weight
        if given is None:
            return 1.0
        if isinstance(given, str):
            return compute_sample_weight(given, labels)
        known = self.classes_.tolist()
        for label, weight in given.items():
            if label not in known:
                raise ValueError(f"class_weight must name known classes, {_shown(self.classes_)}, found {label!r}")
            number(f"class_weight[{label!r}]", weight, least=0)
        return np.array([float(given.get(label, 1.0)) for label in known])[labels]


def _has_probabilities(model: KernelClassifier) -> bool:
    if model.loss not in ("auto", "logistic") and hasattr(model, "_machine") and model._machine.calibration is None:
        raise AttributeError(
            f"probabilities need loss='logistic', or a fit that leaves rows out to judge by (the default method, ten "
            f"rows or more, no stream), found loss={model.loss!r}"
        )
    return True


def _shown(classes: np.ndarray) -> str:
    most = 8
    return f"[{', '.join(map(repr, classes[:most].tolist()))}{', …' if len(classes) > most else ''}]"
