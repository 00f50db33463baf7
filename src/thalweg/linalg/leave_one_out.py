"""What a machine would predict of each row without it, in closed form: nothing is solved again."""

from typing import Any

__all__ = ["leave_one_out"]


def leave_one_out(values: Any, weights: Any, inverse_diagonal: Any, diagonal: Any) -> Any:
    """Return f_i − W_i (1/A⁻¹_ii − d_i), what f is at row i if W_i is set to 0 and the others are solved for again.

    f = KW, where W solves (K + d) W = y, and A = K + d. With y in the place of f and 0 in that of d it is the same: the
    residual of a row left out is y_i − f₋ᵢ(x_i) = W_i / A⁻¹_ii (Wahba, 1990, (4.2.9)).

    Parameters
    ----------
    values, weights
        f and W, a column for each output.
    inverse_diagonal, diagonal
        That of A⁻¹, and d, as columns.

    Examples
    --------
    >>> import numpy as np
    >>> A, y = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([[1.0], [2.0]])
    >>> inverse = np.linalg.inv(A)
    >>> left_out = leave_one_out(y, inverse @ y, np.diagonal(inverse)[:, None], 0)
    >>> bool(np.isclose(left_out[0, 0], A[0, 1] / A[1, 1] * y[1, 0]))
    True
    """
    return values - weights * (1 / inverse_diagonal - diagonal)
