"""Optional packages: which command installs one that is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from thalweg.errors import MissingPackageError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Turn a failed import of an optional package into an error that says how to install it.

    Parameters
    ----------
    name
        The extra of Thalweg that lists the package.

    Examples
    --------
    >>> with extra("report"):
    ...     import a_package_that_nobody_has
    Traceback (most recent call last):
        ...
    thalweg.errors.MissingPackageError: a_package_that_nobody_has is not installed: pip install 'thalweg[report]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackageError(f"{error.name} is not installed: pip install 'thalweg[{name}]'") from error
