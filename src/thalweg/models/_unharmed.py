"""Work on a model that is undone if it fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any


@contextmanager
def unharmed(model: Any, changing: tuple[str, ...] = ()) -> Iterator[None]:
    """Leave the model as it was where what is done in this scope fails or is interrupted.

    What the attributes named in ``changing`` hold is changed in place, and so is copied; arrays never are.
    """
    before = {name: copy(value) if name in changing else value for name, value in vars(model).items()}
    try:
        yield
    except BaseException:
        vars(model).clear()
        vars(model).update(before)
        raise
