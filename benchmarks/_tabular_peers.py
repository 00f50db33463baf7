"""LightGBM and xRFM as :mod:`benchmarks.kernel_tables` runs them: each holds out rows to stop or to choose by.

LightGBM is in the ``bench`` extra; xRFM, which needs PyTorch, takes part where ``pip install xrfm`` has been.
"""

from itertools import product
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split


class EarlyTrees:
    """LightGBM, which stops when a tenth of the rows says so."""

    def __init__(self, labels: bool) -> None:
        self.labels = labels

    def fit(self, x: np.ndarray, y: np.ndarray) -> "EarlyTrees":
        """Learn from nine tenths."""
        import lightgbm

        kind = lightgbm.LGBMClassifier if self.labels else lightgbm.LGBMRegressor
        self.classes, codes = np.unique(y, return_inverse=True) if self.labels else (None, y)
        known, held, targets, truth = train_test_split(
            x, codes, test_size=0.1, random_state=0, stratify=codes if self.labels else None
        )
        self.trees = kind(n_estimators=2000, learning_rate=0.05, random_state=0, verbose=-1)
        stop = lightgbm.early_stopping(50, verbose=False)
        self.trees.fit(known, targets, eval_X=held, eval_y=truth, callbacks=[stop])
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Labels or numbers."""
        found = self.trees.predict(x)
        return found if self.classes is None else self.classes[found]


class FeatureMachine:
    """xRFM (Beaglehole et al., 2025): a fifth of the rows chooses bandwidth, metric and ridge, eight fits in all.

    Columns are standardised but for those of two values, as its authors advise. On a GPU where there is one.
    """

    def __init__(self, labels: bool) -> None:
        self.labels = labels

    def fit(self, x: np.ndarray, y: np.ndarray) -> "FeatureMachine":
        """Learn from four fifths with each setting, and keep the best."""
        two = np.all((x == x.min(axis=0)) | (x == x.max(axis=0)), axis=0)
        self.middle, spread = np.where(two, 0.0, x.mean(axis=0)), x.std(axis=0)
        self.unit = np.where(two | (spread == 0), 1.0, spread)
        self.classes, codes = np.unique(y, return_inverse=True) if self.labels else (None, y)
        self.shift, self.scale = (0.0, 1.0) if self.labels else (y.mean(), y.std())
        targets = codes if self.labels else ((y - self.shift) / self.scale).astype(np.float32)
        parts = train_test_split(
            self._placed(x), targets, test_size=0.2, random_state=0, stratify=codes if self.labels else None
        )
        tried = [self._tried(*parts, width, diagonal, 1e-3) for width, diagonal in product((3.0, 10.0, 30.0), (0, 1))]
        _, _, width, diagonal = min(tried, key=lambda one: one[0])
        tried += [self._tried(*parts, width, diagonal, ridge) for ridge in (1e-2, 1e-1)]
        self.machine = min(tried, key=lambda one: one[0])[1]
        return self

    def _placed(self, x: np.ndarray) -> np.ndarray:
        return ((x - self.middle) / self.unit).astype(np.float32)

    def _tried(self, known: Any, held: Any, y: Any, truth: Any, width: float, diagonal: int, ridge: float) -> tuple:
        from xrfm import xRFM

        settings = {
            "model": {"kernel": "l2", "bandwidth": width, "exponent": 1.0, "diag": bool(diagonal)},
            "fit": {"reg": ridge, "iters": 5, "verbose": False, "early_stop_rfm": True},
        }
        metric = "brier" if self.labels else "mse"
        machine = xRFM(settings, tuning_metric=metric, random_state=0, verbose=False)
        column = (lambda part: part) if self.labels else (lambda part: part[:, None])
        machine.fit(known, column(y), held, column(truth))
        if self.labels:
            errors = np.asarray(machine.predict_proba(held)) - np.eye(len(self.classes))[truth]  # type: ignore[arg-type]
        else:
            errors = np.asarray(machine.predict(held)).reshape(-1) - truth
        return float(np.mean(errors**2)), machine, width, diagonal

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Labels or numbers."""
        if self.labels:
            return self.classes[np.argmax(np.asarray(self.machine.predict_proba(self._placed(x))), axis=1)]  # type: ignore[index]
        return self.shift + self.scale * np.asarray(self.machine.predict(self._placed(x))).reshape(-1)
