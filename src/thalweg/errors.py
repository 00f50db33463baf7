"""Errors that name the argument, say what was found, and say what would work."""


class ThalwegError(Exception):
    """Base of every error that only Thalweg raises."""


class IncompatiblePartsError(ThalwegError, TypeError):
    """Parts of a method that cannot work together: raised when they are put together, not at step 400."""


class FileFormatError(ThalwegError, ValueError):
    """A file that is damaged, foreign, or of a version this release cannot read."""


class DataNotFoundError(ThalwegError, LookupError):
    """A data set that is neither in the data folder nor at a public home."""


class MissingPackageError(ThalwegError, ImportError):
    """An optional package that is not installed; the message says which command installs it."""
