"""Files of a completed matrix that were changed: each is refused in words before anything is computed."""

from dataclasses import replace

import numpy as np
import pytest

import thalweg
from thalweg import MatrixCompletion, files
from thalweg.errors import FileFormatError

ROW, COLUMN = np.divmod(np.arange(60), 6)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "model"
    X, y = np.column_stack([ROW, COLUMN]), np.sin(ROW) * np.cos(COLUMN)
    MatrixCompletion(2, tol=1.0, random_state=0).fit(X, y).save(path)
    return path


def kept(**change):
    return "_kept", lambda found: replace(found, **{name: part(getattr(found, name)) for name, part in change.items()})


def seen(**change):
    return "_model", lambda found: replace(
        found, seen=replace(found.seen, **{name: part(getattr(found.seen, name)) for name, part in change.items()})
    )


HOSTILE = {
    "a row that there is not": kept(rows=lambda rows: rows + 1),
    "a row before the first": kept(rows=lambda rows: rows - 1),
    "half a row": kept(rows=lambda rows: rows + 0.5),
    "a column that there is not": kept(columns=lambda columns: columns + 1),
    "fewer ratings than rows": kept(values=lambda values: values[1:]),
    "more weights than ratings": kept(weights=lambda _: np.ones(61)),
    "a rating that is none": kept(values=lambda values: values * np.nan),
    "a seen column that there is not": seen(columns=lambda columns: columns + 1),
    "a seen column before the first": seen(columns=lambda columns: columns - 1),
    "half a column": seen(columns=lambda columns: columns + 0.5),
    "rows that go back": seen(starts=lambda starts: np.concatenate([starts[:1], starts[-2:0:-1], starts[-1:]])),
    "rows of fewer cells": seen(starts=lambda starts: starts // 2),
    "no rows": seen(starts=lambda starts: starts[:0]),
    "fewer rows": seen(starts=lambda starts: starts[[0, -1]]),
    "more columns": seen(width=lambda width: width + 1),
    "choices of other rows": ("_model", lambda found: replace(found, row_choice=np.zeros(3))),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_changed_file_is_refused(saved, tmp_path, case):
    tree, metadata, kind = files.read(saved)
    name, change = HOSTILE[case]
    tree["fitted"][name] = change(tree["fitted"][name])
    files.save(tmp_path / "changed", tree, metadata, kind=kind)
    with pytest.raises(FileFormatError, match="changed"):
        thalweg.load(tmp_path / "changed")


def test_the_file_itself_is_read(saved):
    assert np.isfinite(thalweg.load(saved).predict([[0, 0]])).all()
