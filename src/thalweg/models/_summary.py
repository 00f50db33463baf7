"""A table of coefficients, as statisticians read it."""

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from thalweg.gaussian.linear import CoefficientMarginals

_HEADER = ("", "mean", "sd", "2.5 %", "97.5 %", "P(> 0)")


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
    marginals: CoefficientMarginals | None = None
    """What the quantiles are of; by default they are those of normal distributions."""

    @property
    def of(self) -> CoefficientMarginals:
        """The distributions that quantiles are of."""
        normal = CoefficientMarginals(np.ones(1), self.means[None], self.deviations[None], np.array([np.inf]))
        return normal if self.marginals is None else self.marginals

    @property
    def interval(self) -> np.ndarray:
        """The 2.5 % and the 97.5 % quantile of each coefficient."""
        return self.of.interval(0.95)

    @property
    def probability_positive(self) -> np.ndarray:
        """P(coefficient > 0)."""
        return 1 - self.of.below(0.0)

    def to_frame(self) -> Any:
        """The table as a data frame of pandas, which must be installed: a row for each coefficient."""
        try:
            import pandas  # type: ignore[import-untyped, unused-ignore]
        except ImportError:
            raise ImportError("to_frame needs pandas: pip install pandas") from None
        columns = [self.means, self.deviations, *self.interval.T, self.probability_positive]
        return pandas.DataFrame(dict(zip(_HEADER[1:], columns, strict=True)), index=self.names)

    def _cells(self) -> list[list[str]]:
        numbers = np.column_stack([self.means, self.deviations, self.interval])
        return [
            [name, *(f"{number:.4g}" for number in row), f"{probability:.3f}"]
            for name, row, probability in zip(self.names, numbers, self.probability_positive, strict=True)
        ]

    def __repr__(self) -> str:
        cells = [list(_HEADER), *self._cells()]
        widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADER))]
        line = lambda row: "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
        return "\n".join(line(row).rstrip() for row in cells)

    def _repr_html_(self) -> str:
        row = lambda tag, cells: "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
        body = "".join(row("td", cells) for cells in self._cells())
        return f"<table><thead>{row('th', _HEADER)}</thead><tbody>{body}</tbody></table>"
