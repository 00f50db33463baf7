"""Rows: examples as every system reads them, their robust scales, their duplicates and their order."""

from thalweg.rows.scale import *
from thalweg.rows.split import *
from thalweg.rows.table import *
