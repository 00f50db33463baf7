"""A table of coefficients, as statisticians read it."""

from dataclasses import dataclass
from html import escape

import numpy as np
from scipy.special import stdtr, stdtrit

_HEADER = ("", "mean", "sd", "2.5 %", "97.5 %", "P(> 0)")


@dataclass(frozen=True)
class Marginals:
    """The posterior of each coefficient by itself: a mixture of normal or Student's t distributions, one per row.

    Examples
    --------
    >>> Marginals(np.ones(1), np.zeros((1, 1)), np.ones((1, 1)), np.array([np.inf])).interval(0.95).round(2)
    array([[-1.96,  1.96]])
    """

    shares: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    freedoms: np.ndarray
    """Degrees of freedom of each part: infinite for normal distributions."""

    def below(self, values: np.ndarray | float) -> np.ndarray:
        """The probability that each coefficient is at most so large."""
        with np.errstate(divide="ignore", invalid="ignore"):
            standard = (values - self.means) / self.deviations
        # Where nothing is uncertain, a value at the mean has half of the probability below it.
        return self.shares @ stdtr(self.freedoms[:, None], np.nan_to_num(standard, posinf=1e300, neginf=-1e300))

    def interval(self, level: float) -> np.ndarray:
        """The central intervals that hold the probability ``level``, one per row: lower and upper end."""
        return np.column_stack([self._quantile((1 - level) / 2), self._quantile((1 + level) / 2)])

    def _quantile(self, probability: float) -> np.ndarray:
        ends = self.means + stdtrit(self.freedoms[:, None], probability) * self.deviations
        low, high = ends.min(axis=0), ends.max(axis=0)
        # That of the mixture is between those of its parts.
        for _ in range(_BISECTIONS if len(self.shares) > 1 else 0):
            middle = (low + high) / 2
            under = self.below(middle) < probability
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        return (low + high) / 2


_BISECTIONS = 60


@dataclass(frozen=True, repr=False)
class Summary:
    """The posterior of each coefficient: one entry per row, the intercept's first if there is one.

    It prints as a table, and is an HTML table in a notebook.

    Examples
    --------
    >>> Summary(["intercept", "age"], np.array([-1.0, 0.25]), np.array([0.5, 0.1]))
                   mean      sd    2.5 %   97.5 %  P(> 0)
    intercept        -1     0.5    -1.98 -0.02002   0.023
    age            0.25     0.1    0.054    0.446   0.994
    """

    names: list[str]
    means: np.ndarray
    deviations: np.ndarray
    marginals: Marginals | None = None
    """What the quantiles are of; by default they are those of normal distributions."""

    @property
    def _marginals(self) -> Marginals:
        normal = Marginals(np.ones(1), self.means[None], self.deviations[None], np.array([np.inf]))
        return normal if self.marginals is None else self.marginals

    @property
    def interval(self) -> np.ndarray:
        """The 2.5 % and the 97.5 % quantile of each coefficient."""
        return self._marginals.interval(0.95)

    @property
    def probability_positive(self) -> np.ndarray:
        """P(coefficient > 0)."""
        return 1 - self._marginals.below(0.0)

    def _cells(self) -> list[list[str]]:
        numbers = np.column_stack([self.means, self.deviations, self.interval])
        return [
            [name, *(f"{number:.4g}" for number in row), f"{probability:.3f}"]
            for name, row, probability in zip(self.names, numbers, self.probability_positive, strict=True)
        ]

    def __repr__(self) -> str:
        cells = [list(_HEADER), *self._cells()]
        widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADER))]
        line = lambda row: "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        return "\n".join(line(row).rstrip() for row in cells)

    def _repr_html_(self) -> str:
        row = lambda tag, cells: "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
        body = "".join(row("td", cells) for cells in self._cells())
        return f"<table><thead>{row('th', _HEADER)}</thead><tbody>{body}</tbody></table>"
