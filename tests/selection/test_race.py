"""The race: who goes on, when refinements stop, candidates that fail, interrupts."""

import numpy as np
import pytest

from thalweg.selection import Entry, is_better, race


def test_paired_difference_finds_what_single_means_do_not():
    shared = np.random.default_rng(0).normal(size=50)
    own = np.random.default_rng(1).normal(size=(2, 50))
    assert is_better(Entry("a", shared - 0.05), Entry("b", shared), standard_errors=3)
    assert not is_better(Entry("a", own[0] - 0.05), Entry("b", own[1]), standard_errors=3)


def test_a_candidate_that_fails_has_lost_and_the_race_goes_on():
    def score(candidate, rung):
        if candidate == "breaks":
            raise np.linalg.LinAlgError("not positive definite")
        scored.append((candidate, rung))
        return np.full(rung, np.nan) if candidate == "nan" else np.ones(rung)

    scored = []
    result = race(["breaks", "nan", "works"], score, [10, 20])
    assert result.best.candidate == "works"
    assert sorted(scored) == [("nan", 10), ("works", 10), ("works", 20)]


def test_other_errors_are_not_hidden():
    def score(candidate, rung):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        race(["only"], score, [10])


def test_level_candidates_survive_and_larger_rungs_decide():
    def score(candidate, rows):
        # On the small rung the hare looks a little better, within noise; on the large one it is worse.
        own = np.random.default_rng([rows, len(candidate)]).normal(size=rows)
        return own - np.mean(own) + (0.1 if (candidate == "hare") == (rows > 100) else 0.0)

    assert race(["hare", "tortoise"], score, [20, 1000]).best.candidate == "hare"
    level = race(["hare", "tortoise"], score, [20, 1000], survivors=2, standard_errors=2.0)
    assert level.best.candidate == "tortoise"


def level_and_far(candidate, rows):
    own = np.random.default_rng(len(candidate)).normal(size=rows)
    return own - np.mean(own) + {"hare": 0.0, "tortoise": 0.1, "snail": 1.0}[candidate]


def test_more_rows_decide_among_those_that_are_level_and_only_among_them():
    further = lambda candidate: np.full(900, {"hare": 0.2, "tortoise": 0.0, "snail": -9.0}[candidate])
    result = race(["hare", "tortoise", "snail"], level_and_far, [50, 100], further=further, survivors=3)
    assert result.best.candidate == "tortoise"
    assert [one.candidate for one in result.level] == ["hare"]
    assert len(result.best.losses) == 100


def test_an_interrupt_while_more_rows_decide_keeps_the_winner_of_the_last_rung():
    def further(candidate):
        raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted"):
        result = race(["tortoise", "hare"], level_and_far, [100], further=further)
    assert result.interrupted
    assert result.best.candidate == "hare"


def test_proposals_are_taken_as_long_as_they_gain():
    score = lambda x, rung: np.full(5, 1.0 + 0.5**x)
    result = race([0], score, ["all"], propose=lambda best, rung: [best.candidate + 1], least_gain=0.01)
    assert result.best.candidate == 7  # the step from 6 gains less than a hundredth of the loss, and is the last


def test_line_search_finds_the_minimum_of_a_convex_loss():
    axes = [
        (lambda c: (2 * c[0], c[1]), lambda c: (c[0] / 2, c[1])),
        (lambda c: (c[0], 10 * c[1]), lambda c: (c[0], c[1] / 10)),
    ]
    score = lambda c, rung: np.array([np.log2(c[0] / 8) ** 2 + np.log10(c[1] / 1e-3) ** 2])
    assert race([(1.0, 1.0)], score, [1], axes=lambda rung: axes).best.candidate == pytest.approx((8.0, 1e-3))


@pytest.mark.parametrize("parallel", [True, False])
def test_each_candidate_is_scored_once_on_a_rung(parallel):
    seen = []

    def score(x, rung):
        seen.append((x, rung))
        return np.array([(x - 3.0) ** 2])

    race(
        [0, 1, 8], score, [1, 2], axes=lambda rung: [(lambda x: x + 1, lambda x: x - 1)], parallel=lambda rung: parallel
    )
    assert len(seen) == len(set(seen))


def test_interrupted_race_returns_the_best_so_far():
    def score(x, rung):
        if rung == 2:
            raise KeyboardInterrupt
        return np.array([x])

    with pytest.warns(UserWarning, match="interrupted"):
        result = race([5.0, 4.0], score, [1, 2], parallel=lambda rung: False)
    assert result.interrupted
    assert result.best.candidate == 4.0


def test_a_rung_ends_where_nothing_is_left_to_gain():
    """Losses may be negative, as those of densities are: by default there is always something left."""
    score = lambda x, rung: np.full(4, 1.0 - x)
    propose = lambda best, rung: [best.candidate + 1] if best.candidate < 9 else []
    assert race([0], score, ["all"], propose=propose).best.candidate == 9
    assert race([0], score, ["all"], propose=propose, enough=-8.0).best.candidate == 3


def test_refinements_come_first_and_others_only_where_none_of_them_gains():
    """What is proposed is moved along the axes before it is compared; refinements are taken as they are."""
    score = lambda candidate, rung: np.array(
        [{"begin": 4.0, "refined": 2.0, "other": 3.0, "other moved": 1.0}[candidate]]
    )
    asked = []

    def refine(best, rung):
        asked.append(("refine", best.candidate))
        return ["refined"] if best.candidate == "begin" else []

    def propose(best, rung):
        asked.append(("propose", best.candidate))
        return ["other"] if best.candidate == "refined" else []

    axes = lambda rung: [(lambda candidate: "other moved" if candidate == "other" else None,)]
    assert race(["begin"], score, [1], axes=axes, refine=refine, propose=propose).best.candidate == "other moved"
    assert asked == [
        ("refine", "begin"),
        ("refine", "refined"),
        ("propose", "refined"),
        ("refine", "other moved"),
        ("propose", "other moved"),
    ]


def test_each_rung_begins_anew_with_the_best_of_its_fresh_candidates():
    losses = {"old": (1.0, 3.0), "fresh": (2.0, 0.5)}
    score = lambda candidate, rung: np.array([losses[candidate][rung]])
    fresh = lambda rung: ["fresh"] if rung == 1 else []
    assert race(["old"], score, [0, 1], fresh=fresh).best.candidate == "fresh"
