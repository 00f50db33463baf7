"""The kernel that makes rows most probable: families compared on parts of the rows, and on all; sums of two of them.

A search on few rows is cheap, and where it ends another on more rows begins. Of the families those go on that are close
to the best. Some are then given a second term, with lengthscales of its own: what is learned of real rows is hardly
ever of one smoothness and one scale in each feature. A sum has to pay for its parameters: it is taken if it is ahead by
half the logarithm of the number of rows for each (Schwarz, 1978).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Protocol

import jax
import numpy as np

from thalweg.descent import Status
from thalweg.kernels import Kernel, Matern12, Matern32, Stationary, Sum
from thalweg.processes import host
from thalweg.processes.evidence import Optimum, Searched, maximise
from thalweg.processes.exact import Observations, Parameters, prepare_predictions
from thalweg.processes.given import Given
from thalweg.processes.host import HostRows
from thalweg.processes.iterative import Climb
from thalweg.processes.means import Mean
from thalweg.threads import enough_threads

STARTING_NOISE, LEAST_NOISE = 0.1, 1e-8
"""The share of the targets' variance that is noise: where a search starts, and the least that it may find."""

_PARTIAL_NOISE = 1e-4
"""The least on a part of the rows, where a few that agree by chance would say that there is none."""

_LEVELS, _MORE = (150, 400, 1_200, 4_000), 1.2
"""Rows on which parameters are looked for before all rows are taken, if those are so many times more."""

_AT_HAND = {False: 200, True: 400}
"""Rows of a search that are left to the host even if there is an accelerator: more if all are many."""

_ACCELERATED_LEVELS = (150, 384, 4_000, 16_000)
"""Those where there is an accelerator: fewer in between, since each is a new program."""

_FIRST, _ROUGHLY, _FOR_A_SUM, _CLOSELY, _WORTH_A_ROW = 1.0, 0.3, 0.1, 0.1, 2e-5
"""A gain in nats that is worth another step: on the first rows, on the way, of a sum, at the end; and for each row."""

_CLIMBED, _CLIMBING_STEPS = {True: 20_000, False: 300_000}, 6
"""Rows up to which, on a CPU and on an accelerator, parameters are learned on all rows by solves; and steps of it."""

_ROUGH = 5.0
"""Nats by which Matern12, functions without a derivative, must be ahead of all others to be taken."""

_CLOSE = 10.0
"""Nats by which a family may be behind the best and yet go on with more rows."""

_FAR = 30.0
"""Those on few rows."""

_ELSEWHERE = 1.0
"""Nats by which a restart must be better for all families to start again from what it found."""

_TELLING = 400
"""Rows up to which rows are few: on those, one that is best in the end may be twenty behind."""

_DOUBLED = 300
"""Rows from which on a second term is looked for; on fewer only if they are all there are."""

_ROWS_A_PARAMETER = 5
"""Rows for each parameter of a second term below which none is looked for."""

_DEAR = 2_000
"""Rows above which, on a CPU, two families are fitted, and one at the end."""

_VERY_DEAR, _DEAR_STEPS = 20_000, 10
"""Rows above which a search on all of them takes no more steps: each is some tenths of 10¹⁴ operations."""

_LATER_STEPS, _SETTLED = 25, 8_000
"""Steps of a search that starts from where one on fewer rows ended, unless it is the last and its rows are few."""

_SHORTER, _LOUDER = (1.0, 0.3, 0.1, 0.03), (5.0, 1.0, 0.1, 0.01)
"""What lengthscales, and the noise, are multiplied by where which the first rows are looked at for another start."""

_FINER, _QUIETER = (0.3, 0.1), (1.0, 0.3, 0.1)
"""The same of what fewer rows have found, where more rows are looked at."""

_SECOND_LENGTHS, _SECOND_SHARES = (1.0, 0.3), ((0.5, 0.5), (1.0, 0.1))
"""A second term begins with a share of the lengthscales at the start, and takes one of the noise and leaves another."""

_SECOND_SIZE, _SECOND_LEAST = 0.1, 1e-3
"""Shares of the targets' variance: what a second term is expected to have, and the least that it begins with."""

_TRUSTED = 1.0
"""How far a search by slopes alone may take the logarithm of a parameter."""

_RESTART_SPREAD = 1.0
"""Standard deviation of the logarithm of the parameters at a restart."""


Begun = tuple[Parameters, Parameters]
"""Where the prior of a search is, and where it starts."""


class Compared(Searched, Protocol):
    """What a comparison needs of rows."""

    def loss(self, parameters: Parameters) -> Any:
        """−log p(y)."""


@dataclass(frozen=True)
class Levels:
    """Parts of the rows that a search looks at one after another."""

    given: Given
    mean: Mean
    separate: bool
    rows: HostRows
    whole: bool
    """Whether the last part is all rows."""
    seed: int

    def prepared(self, start: Parameters) -> list[tuple[HostRows | Observations | Climb, bool]]:
        """Parts, and whether it is the last; an accelerator begins to compile for all of them at once."""
        count, here = len(self.rows.inputs), jax.default_backend() == "cpu"
        order = np.random.default_rng(self.seed).permutation(len(self.given.inputs))
        sizes = [size for size in (_LEVELS if here else _ACCELERATED_LEVELS) if _MORE * size < count]
        at_hand = _AT_HAND[count > _ACCELERATED_LEVELS[2]]
        taken = [self.given.merged(self.mean, self.separate, order[:size]) for size in sizes]
        taken += [self.rows] if self.whole or not sizes else []
        parts: list[HostRows | Observations | Climb] = [where_computed(rows, at_hand) for rows in taken]
        if len(taken) == len(sizes) and count <= _CLIMBED[here]:
            parts.append(Climb(self.rows, self.mean, self.seed))
        for part in parts:
            if isinstance(part, Observations):
                part.prepare(start)
        if self.whole and not host.serves(count):
            prepare_predictions(start.kernel, self.rows)
        return [(part, part is parts[-1]) for part in parts]


def where_computed(rows: HostRows, at_hand: int = host.AT_HAND) -> HostRows | Observations:
    """Rows on the host if there is nothing else or they are no more than some, else on the device."""
    return rows if host.serves(len(rows.inputs), at_hand) else Observations.padded(*rows)


@dataclass
class Choice:
    """A search on few rows from all starts, one for each family, and from the best of what they found on more, and all.

    ``free`` says if the noise is learned, ``doubled`` if sums of two terms are looked at, and ``varies`` which features
    differ between rows; ``note`` is told how searches go on.
    """

    starts: list[Parameters]
    free: bool
    restarts: int
    max_iter: int
    doubled: bool
    varies: np.ndarray
    seed: int
    note: Callable[[str], None]
    steps: int = 0

    def made(self, levels: Levels) -> Optimum:
        """The best that was found, until an interrupt if there is one."""
        former = None
        found: list[Optimum] = []
        begun: list[Begun] = []
        single = self.doubled and len(levels.rows.inputs) >= _ROWS_A_PARAMETER * (1 + np.sum(self.varies))
        try:
            for part, last in levels.prepared(self.starts[0]):
                size, climbing = len(part.inputs), isinstance(part, Climb)
                search = partial(self._searched, part=part, last=last, whole=levels.whole)
                ranked = lambda one: one.loss + self._handicap(one.parameters, size)  # noqa: B023
                begun = self._finer(self._close(begun, part, last), part) if found else begun
                alone = last and len(begun) == 1 and not single  # and so searched to its end at once
                worth = _CLOSELY if climbing or alone else _ROUGHLY
                found = search(begun, worth) if found else self._begin(part, search, last)
                if climbing and former is not None:
                    found = [_checked(found[0], begun[0][1], former)]
                if len(self.starts) > 1 and not last and size <= _DEAR and not _interrupted(found):
                    found += self._second_chances(found, part, search)
                found.sort(key=ranked)
                if single and not climbing and (last or size >= _DOUBLED) and not _interrupted(found):
                    single = False
                    found += search(self._sums(found, part), _FOR_A_SUM, hopeful=True)
                    found.sort(key=ranked)
                if last and not climbing and not alone and not _interrupted(found):
                    found = search([(found[0].origin, found[0].parameters)], _CLOSELY)
                if _interrupted(found):
                    return found[0]._replace(steps=self.steps, status=Status.INTERRUPTED)
                former = part
                # Few rows do not tell families apart: each goes on, from the best that it has found; later while close.
                furthest = ranked(found[0]) + (_CLOSE if size > _TELLING else _FAR)
                best = {_family(one.parameters.kernel): one for one in reversed(found) if ranked(one) < furthest}
                begun = [(one.origin, one.parameters) for one in sorted(best.values(), key=ranked)] or begun[:1]
        except KeyboardInterrupt:
            if not found:
                raise
            return min(found, key=ranked)._replace(steps=self.steps, status=Status.INTERRUPTED)
        return found[0]._replace(steps=self.steps)

    def _begin(
        self, part: Compared, search: Callable[[list[Begun], float], list[Optimum]], last: bool
    ) -> list[Optimum]:
        """What each family finds, and the best one from other starts; where one of those is better, all from there."""
        worth = _ROUGHLY if last else _FIRST
        rng = np.random.default_rng(self.seed)
        scaled, quieter = self._scan(part)
        found = search([(start, _scaled(start, scaled, quieter)) for start in self.starts], worth)
        for _ in range(self.restarts):
            best = min(found, key=lambda one: one.loss)
            if _interrupted(found):
                break
            again = search([(best.origin, _moved(best.origin, self.varies, rng))], worth)
            found += again
            if again[0].loss < best.loss - _ELSEWHERE and len(self.starts) > 1:
                others = [start for start in self.starts if type(start.kernel) is not type(best.origin.kernel)]
                found += search([(start, _with_family(again[0].parameters, start)) for start in others], worth)
        return found

    def _scan(self, part: Compared) -> tuple[float, float]:
        """The shares of lengthscales and of noise at which the first family is most probable."""
        shares = [(a, b) for a in _SHORTER for b in (_LOUDER if self.free else (1.0,))]
        if not hasattr(self.starts[0].kernel, "lengthscale"):
            shares = shares[: len(shares) // len(_SHORTER)]
        best = _likeliest([_scaled(self.starts[0], *share) for share in shares], part)
        return shares[best]

    def _close(self, begun: list[Begun], part: Compared, last: bool) -> list[Begun]:
        """Those to go on from, the best first: more rows tell families apart before they are fitted to them."""
        size = len(part.inputs)
        dear = jax.default_backend() == "cpu" and size > _DEAR
        begun = begun[:1] if isinstance(part, Climb) else begun
        if dear:  # and so none but the best will be fitted: compared with its like
            begun = [one for one in begun if isinstance(one[1].kernel, Sum) is isinstance(begun[0][1].kernel, Sum)]
        if len(begun) == 1 or not (last or size > _TELLING):
            return begun
        losses = np.array([float(part.loss(one)) + self._handicap(one, size) for _, one in begun])
        behind = losses - np.nanmin(losses) if np.any(np.isfinite(losses)) else 0 * losses
        order = [int(place) for place in np.argsort(losses)]
        # A sum that was fitted to few rows is far behind on more of them until it is fitted to those.
        sums = [place for place in order if self.doubled and isinstance(begun[place][1].kernel, Sum)]
        sums = sums[: 2 if size <= _DEAR else 1]
        begun = [begun[place] for place in order if place in sums or not behind[place] >= _CLOSE]
        return begun[: 1 if last and (dear or size > _SETTLED) else 2 if dear else None]

    def _finer(self, begun: list[Begun], part: Compared) -> list[Begun]:
        """Shorter lengthscales first, where these are more probable as they are: few rows take fast waves for noise."""
        size, here = len(part.inputs), jax.default_backend() == "cpu"
        best = begun[0][1]
        if isinstance(part, Climb) or (here and size > _DEAR) or not hasattr(best.kernel, "lengthscale"):
            return begun
        shares = [(1.0, 1.0), *product(_FINER, _QUIETER if self.free else (1.0,))]
        losses = _losses([_scaled(best, *share) for share in shares], part)
        if not np.nanmin(losses[1:], initial=np.inf) < losses[0] - _ELSEWHERE:
            return begun
        share = shares[int(np.nanargmin(losses))]
        return [(origin, _scaled(start, *share)) for origin, start in begun] + begun

    def _second_chances(
        self, found: list[Optimum], part: Compared, search: Callable[[list[Begun], float], list[Optimum]]
    ) -> list[Optimum]:
        """What families that are behind find from where the best is, unless they are far behind there too."""
        again: list[Optimum] = []
        for start in self.starts:
            single = [one for one in found + again if not isinstance(one.parameters.kernel, Sum)]
            if not single:  # sums left all of them behind
                break
            best = min(single, key=lambda one: one.loss)
            own = [one.loss for one in single if type(one.parameters.kernel) is type(start.kernel)]
            begun = _with_family(best.parameters, start)
            if min(own, default=np.inf) > best.loss + _CLOSE and float(part.loss(begun)) < best.loss + _FAR:
                again += search([(start, begun)], _ROUGHLY)
        return again

    def _handicap(self, parameters: Parameters, rows: int) -> float:
        """Nats that a kernel has to be ahead of one with a single, smooth term."""
        if self.doubled and isinstance(parameters.kernel, Sum):
            return (1 + np.sum(self.varies)) * np.log(rows) / 2
        return _ROUGH if isinstance(parameters.kernel, Matern12) else 0.0

    def _searched(
        self, begun: list[Begun], worth: float, part: Compared, last: bool, whole: bool, hopeful: bool = False
    ) -> list[Optimum]:
        """What searches from some starts found; unless ``hopeful``, those that stay behind others end early.

        A second term gains little at first, as long as it is like the first one: bold steps take it away from there.
        """
        size, climbing = len(part.inputs), isinstance(part, Climb)
        limit = self.max_iter if not last or size <= _SETTLED else min(self.max_iter, _LATER_STEPS)
        limit = min(limit, _CLIMBING_STEPS if climbing else _DEAR_STEPS if size > _VERY_DEAR else limit)
        worth = max(worth, _WORTH_A_ROW * size)
        unit = float(self.starts[0].noise) / STARTING_NOISE
        least = (LEAST_NOISE if last and whole else _PARTIAL_NOISE) * unit
        found: list[Optimum] = []
        with enough_threads(size):
            behind = 0.0 if last else _CLOSE
            furthest = _TRUSTED if climbing else None
            best = np.inf
            for origin, start in begun:
                # On few rows a search costs little, and where there is no noise it gains a little for a hundred nats.
                hopeless = np.inf if hopeful or size <= _TELLING else best + behind - self._handicap(start, size)
                search = partial(maximise, part, start, origin, limit, self.free, least, worth)
                found.append(search(furthest=furthest, hopeless=hopeless, bold=hopeful))
                best = min(best, found[-1].loss + self._handicap(start, size))
                self.steps += found[-1].steps
                outcome = f"log p(y) {-found[-1].loss:.2f}: {found[-1].parameters.kernel}"
                self.note(f"{size} rows, {self.steps} evaluations, {outcome}")
                if found[-1].status is Status.INTERRUPTED:
                    break
        return found

    def _sums(self, found: list[Optimum], part: Compared) -> list[Begun]:
        """Starts with a second term, of the best family, and of Matern32 and beside a rough one where those are close.

        Which family is ahead without a second term says little of which is with it, but where the rough one is, two
        smooth terms of unlike scale are what the rows mean as often as not.
        """
        best = found[0]
        each = {type(one.parameters.kernel): one for one in reversed(found)}
        close = {family: one for family, one in each.items() if one.loss < best.loss + _CLOSE}
        rough = Matern12 in close
        first = best if not isinstance(best.parameters.kernel, Matern12) else each.get(Matern32, best)
        other = each.get(Matern32, first) if rough else close.get(Matern32, first)
        pairs: list[tuple[Optimum, type[Kernel]]]
        pairs = [(one, type(one.parameters.kernel)) for one in ([first] if other is first else [other, first])]
        pairs += [(first, Matern12)] if rough else []
        begun, families = [], {type(start.kernel): start.kernel for start in self.starts}
        for one, family in pairs:
            kernel, noise = one.parameters.kernel, one.parameters.noise
            lengths, spread = one.origin.kernel.lengthscale, one.origin.kernel.variance
            shares = _SECOND_SHARES if self.free else ((_SECOND_SHARES[0][0], 1.0),)
            tried = []
            for length, (size, left) in product(_SECOND_LENGTHS, shares):
                second = host.of_family(families[family], length * lengths, size * max(noise, _SECOND_LEAST * spread))
                tried.append(Parameters(Sum(kernel, second), np.asarray(left * noise)))
            second = host.of_family(families[family], lengths, _SECOND_SIZE * spread)
            origin = Parameters(Sum(one.origin.kernel, second), one.origin.noise)
            begun.append((origin, tried[_likeliest(tried, part)]))
        return begun


def _likeliest(tried: list[Parameters], rows: Compared) -> int:
    """Which of some parameters makes rows most probable; the first if none can be told."""
    losses = _losses(tried, rows)
    return int(np.nanargmin(losses)) if np.any(np.isfinite(losses)) else 0


def _losses(tried: list[Parameters], rows: Compared) -> list[float]:
    with enough_threads(len(rows.inputs)):
        return [float(rows.loss(one)) for one in tried]


def _scaled(start: Parameters, shorter: float, quieter: float) -> Parameters:
    kernel = start.kernel
    if isinstance(kernel, Stationary) and hasattr(kernel, "lengthscale"):  # the first of its parameters
        kernel = host.of_family(kernel, shorter * kernel.lengthscale, *jax.tree.leaves(kernel)[1:])
    return Parameters(kernel, np.asarray(quieter * start.noise))


def _with_family(parameters: Parameters, start: Parameters) -> Parameters:
    """Those with the family of a start."""
    return Parameters(host.of_family(start.kernel, *jax.tree.leaves(parameters.kernel)), parameters.noise)


def _checked(found: Optimum, before: Parameters, part: Compared) -> Optimum:
    """What a search by slopes found, unless the rows looked at before say that it went astray."""
    ahead, behind = (float(part.loss(one)) for one in (found.parameters, before))
    astray = not ahead < behind + max(_CLOSE, 0.02 * len(part.inputs))
    return found._replace(parameters=before) if astray else found


def _interrupted(found: list[Optimum]) -> bool:
    return any(one.status is Status.INTERRUPTED for one in found)


def _family(kernel: Kernel) -> tuple[type[Kernel], ...]:
    return _family(kernel.k1) + _family(kernel.k2) if isinstance(kernel, Sum) else (type(kernel),)


def _moved(start: Parameters, varies: np.ndarray, rng: np.random.Generator) -> Parameters:
    def elsewhere(leaf: np.ndarray) -> np.ndarray:
        # What belongs to a feature that does not vary stays, and uses up no random numbers.
        free = varies if np.shape(leaf) == varies.shape else np.ones(np.shape(leaf), bool)
        logs = np.zeros(np.shape(leaf))
        logs[free] = _RESTART_SPREAD * rng.standard_normal(int(np.sum(free)))
        return np.asarray(leaf * np.exp(logs))

    return jax.tree.map(elsewhere, start)
