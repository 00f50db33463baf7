"""Data sets by name: read from a folder, or downloaded from their public homes and converted.

``load("sonar")`` looks in the folder ``$THALWEG_DATA`` and in the user's cache folder, verifies a checksum,
and otherwise downloads the set into the cache. What has no public home says which file to put where.
"""

from thalweg.data.store import Dataset, describe, folders, load, locate
from thalweg.data.store import names as list

__all__ = ["Dataset", "describe", "folders", "list", "load", "locate"]
