"""Work on a model that is undone if it fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any


@contextmanager
def unharmed(model: Any) -> Iterator[None]:
    """Leave the model as it was where what is done in this scope fails or is interrupted."""
    # What changes in place, a learner and a history, is copied; arrays never do.
    before = {name: copy(value) if name in ("_learner", "history_") else value for name, value in vars(model).items()}
    try:
        yield
    except BaseException:
        vars(model).clear()
        vars(model).update(before)
        raise
