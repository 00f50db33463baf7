"""The context of a long fit: what it keeps, what it records, and what an interrupt does."""

import warnings

import pytest

from thalweg.runs import Run, raising_interrupts


def _interrupted(keeps):
    with Run("fit") as outer:
        with Run("search") as inner:
            if keeps:
                inner.keep("candidate")
            raise KeyboardInterrupt
        outer.keep(inner.kept)
    return outer, inner


def test_interrupt_with_nothing_kept_is_raised():
    with pytest.raises(KeyboardInterrupt):
        _interrupted(keeps=False)


def test_interrupt_keeps_what_was_reached_and_warns_once_at_the_outermost_run():
    with pytest.warns(UserWarning, match=r"interrupted \(fit\)") as caught:
        outer, inner = _interrupted(keeps=True)
    assert outer.interrupted
    assert inner.interrupted
    assert outer.kept == "candidate"
    assert len(caught) == 1


def test_interrupts_meant_for_many_fits_are_raised():
    with raising_interrupts(), pytest.raises(KeyboardInterrupt):
        _interrupted(keeps=True)


def test_other_errors_pass_through_without_a_warning():
    def fail():
        with Run("steps") as run:
            run.keep(1)
            raise ValueError("wrong")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="wrong"):
            fail()


def test_records_have_the_seconds_since_the_one_before():
    with Run("steps") as run:
        run.keep(1, objective=3.0)
        run.record(objective=2.0)
    assert [record["objective"] for record in run.records] == [3.0, 2.0]
    assert all(record["seconds"] >= 0 for record in run.records)
    assert sum(record["seconds"] for record in run.records) <= run.seconds


def test_nested_runs_share_one_bar(capsys):
    with Run("fit", total=2, bar=True) as outer:
        with Run("search", total=5) as inner:
            inner.advance(5, note="loss 0.1")
            assert inner._display is outer._display
        outer.advance(2)
        outer.say("Gaussian kernel")
    shown = capsys.readouterr().out
    assert "fit" in shown
    assert "Gaussian kernel" in shown
