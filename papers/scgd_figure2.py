"""Figure 2 of "Stochastic Chebyshev gradient descent": completing MovieLens by the smoothed nuclear norm."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.completion import Path, Ratings, Relaxed, Way, descend
from thalweg.data import load
from thalweg.experiments import claims, plots
from thalweg.experiments.claims import Claim
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run

_MARK, _MARK_10M = 1.5, 1.8
"""The errors that the paper takes times at."""

_NEAR = 1.02
"""Errors at the end that differ by less are the same."""

THRESHOLD, SMOOTHING = 1.0, 2.0
"""1/(2λ) and √ε, over the typical singular value of the known ratings."""

_PLAIN = Way("sgd", 0.3, law="theorem3", degree=15.0, probes=256, group=16, round=20, decay=100.0)
_DEFLATED = replace(_PLAIN, group=32, precision="default", deflated=True)
WAYS = {
    "GD": Way("gd", 1.8, round=1),
    "SVRG": replace(_DEFLATED, method="svrg", step=0.6, probes=1024, group=1024, round=50, restart="last"),
    "SGD": replace(_DEFLATED, step=0.6),
    "plain SGD": _PLAIN,
    "SGD-DET": replace(_PLAIN, method="sgd-det", step=1.0),
}
"""SVRG and SGD have the leading singular value apart; plain SGD and SGD-DET have it in, as in the paper."""

SECONDS, SECONDS_10M, PATIENCE = 15.0, 50.0, 2.0
"""For each run on MovieLens 1M and 10M, and how many times as long GD has."""


def laws() -> dict[str, Way]:
    """Plain SGD under four laws of the degree, else as in panel (a)."""
    names = {
        "Theorem 3": "theorem3",
        "Poisson": "poisson",
        "negative binomial": "negative_binomial",
        "ours": "optimal",
    }
    return {name: replace(WAYS["plain SGD"], law=law) for name, law in names.items()}


def degrees() -> dict[str, Way]:
    """Plain SGD and SGD-DET, each with its step, at two degrees."""
    tried = [(name, degree) for name in ("plain SGD", "SGD-DET") for degree in (10, 30)]
    return {f"{name}, N = {degree}": replace(WAYS[name], degree=float(degree)) for name, degree in tried}


@dataclass(frozen=True)
class Problem:
    """Ratings to learn from, and cells held out with theirs."""

    name: str
    ratings: Ratings
    held: Ratings


@dataclass(frozen=True)
class Found:
    """Error by time of each panel's runs, and whether the data were the paper's."""

    full: bool
    panels: dict[str, dict[str, Path]] = field(default_factory=dict)

    def end(self, panel: str, name: str) -> float:
        """The mean error of the last quarter of a run: one of SGD's is noisy."""
        errors = self.panels[panel][name].watched
        return float(np.mean(errors[-max(1, len(errors) // 4) :]))

    def times_faster(self, panel: str, name: str, other: str, mark: float) -> float:
        """How many times as long another took to the mark, or at least took if it ended before; NaN if both did."""
        mine, its = (self.panels[panel][one] for one in (name, other))
        spent = min(its.arrival(mark), its.seconds[-1])
        return (
            float("nan") if np.isinf(mine.arrival(mark)) and np.isinf(its.arrival(mark)) else spent / mine.arrival(mark)
        )

    def common(self, panel: str, *names: str) -> float:
        """The lowest error that all of some runs reached."""
        return max(min(self.panels[panel][name].watched) for name in names)

    def only(self, panel: str, test: Callable[[], bool]) -> bool | None:
        """The verdict, where the panel was made at the paper's size."""
        return bool(test()) if self.full and panel in self.panels else None


def _faster(found: Found, panel: str, mark: float, times: float, name: str = "SVRG") -> bool | None:
    """Whether a way was so much faster than GD; None where neither arrived, or it was cut before that could be."""
    if not found.full or panel not in found.panels:
        return None
    ratio = found.times_faster(panel, name, "GD", mark)
    mine, its = (found.panels[panel][one] for one in (name, "GD"))
    cut = np.isinf(mine.arrival(mark)) and mine.seconds[-1] < its.arrival(mark) / times
    return None if np.isnan(ratio) or cut else ratio >= times


def _first(found: Found) -> bool | None:
    """Whether SVRG was the first at the mark; None where nobody arrived, or it was cut before the first did."""
    if not found.full or "a" not in found.panels:
        return None
    arrivals = {name: path.arrival(_MARK) for name, path in found.panels["a"].items()}
    first, mine = min(arrivals.values()), arrivals["SVRG"]
    cut = np.isinf(mine) and found.panels["a"]["SVRG"].seconds[-1] < first
    return None if np.isinf(first) or cut else mine == first


CLAIMS = (
    Claim("SVRG is about 2 times faster than GD to RMSE 1.5 (1M)", lambda found: _faster(found, "a", _MARK, 2.0)),
    Claim("SVRG is the fastest one (to RMSE 1.5, 1M)", _first),
    Claim(
        "SGD converges much faster and outperforms GD (to RMSE 1.5, 1M; here: 1.5 times or more)",
        lambda found: _faster(found, "a", _MARK, 1.5, "SGD"),
    ),
    Claim(
        "the same of plain SGD, whose estimates are the paper's",
        lambda found: _faster(found, "a", _MARK, 1.5, "plain SGD"),
    ),
    Claim(
        "SGD-DET performs badly due to its biased gradient estimators (ends above plain SGD, 1M)",
        lambda found: found.only("a", lambda: found.end("a", "SGD-DET") > _NEAR * found.end("a", "plain SGD")),
    ),
    Claim(
        "(not the paper's) SGD-DET comes to RMSE 1.5 after SGD and SVRG, which have the leading value apart",
        lambda found: found.only(
            "a",
            lambda: (
                max(found.panels["a"][name].arrival(_MARK) for name in ("SGD", "SVRG"))
                < found.panels["a"]["SGD-DET"].arrival(_MARK)
            ),
        ),
    ),
    Claim(
        "other distributions converge slower than the optimal one (N = 15: end above Theorem 3's)",
        lambda found: found.only(
            "c",
            lambda: all(found.end("c", law) > found.end("c", "Theorem 3") for law in ("Poisson", "negative binomial")),
        ),
    ),
    Claim(
        "(not the paper's) our law ends no higher than Theorem 3's",
        lambda found: found.only("c", lambda: found.end("c", "ours") <= _NEAR * found.end("c", "Theorem 3")),
    ),
    Claim(
        "a larger degree reduces the bias error in SGD-DET",
        lambda found: found.only("d", lambda: found.end("d", "SGD-DET, N = 30") < found.end("d", "SGD-DET, N = 10")),
    ),
    Claim(
        "SGD achieves similar error regardless of the degree (within 10 %)",
        lambda found: found.only(
            "d",
            lambda: (
                abs(np.log(found.end("d", "plain SGD, N = 30") / found.end("d", "plain SGD, N = 10"))) < np.log(1.1)
            ),
        ),
    ),
    Claim(
        "SVRG is up to 6 times faster than GD to RMSE 1.8 (10M; here: drawn data of its size, 2 times or more)",
        lambda found: _faster(found, "b", _MARK_10M, 2.0),
    ),
    Claim(
        "(not the paper's mark) the same to the lowest error that both reached",
        lambda found: found.only(
            "b", lambda: found.times_faster("b", "SVRG", "GD", found.common("b", "SVRG", "GD")) >= 2
        ),
    ),
)


@experiment(
    "scgd-figure2",
    title="Completing a matrix of ratings by the nuclear norm: exact gradients against unbiased ones",
    paper="Stochastic Chebyshev gradient descent, Figure 2",
    order=31,
)
def scgd_figure2(run: Run) -> None:
    """Follow GD, SGD, SGD-DET and SVRG on MovieLens 1M, or on a small drawn set if quick."""
    problem = drawn(run.seed, (60, 90), 2_000) if run.quick else movielens()
    found = Found(not run.quick)
    for panel, ways in {"a": WAYS, "c": laws(), "d": degrees()}.items():
        if run.quick:
            found.panels[panel] = follow(problem, _shrunk(ways), 6 if panel == "a" else 4, np.inf, run.seed)
        else:
            # What panel (a) has followed already is not followed again.
            done = {name: found.panels["a"][old] for name, way in ways.items() for old in _alike(way) if panel != "a"}
            rest = {name: way for name, way in ways.items() if name not in done}
            paths = {**done, **follow(problem, rest, 5000, SECONDS, run.seed)}
            found.panels[panel] = {name: paths[name] for name in ways}
        keep(run, panel, found)
    if not run.quick:
        _large(run, found)
    show(run, found)


def _alike(way: Way) -> list[str]:
    """Which runs of panel (a) go the same way."""
    return [name for name, one in WAYS.items() if one == way]


def keep(run: Run, panel: str, found: Found) -> None:
    """Write the curves of a panel, before the next one begins."""
    paths = found.panels[panel].items()
    run.numbers(f"curves_{panel}", {name: {"seconds": path.seconds, "rmse": path.watched} for name, path in paths})


def _shrunk(ways: dict[str, Way]) -> dict[str, Way]:
    """Few probes, and one program for all stochastic ways but SVRG."""
    return {name: replace(way, probes=16, group=1, round=5 if way.method != "gd" else 2) for name, way in ways.items()}


def _large(run: Run, found: Found) -> None:
    """Panel (b) where a dozen matrices of MovieLens 10M's size fit."""
    shape, needed = (10_677, 71_567), 12 * 4 * 10_677 * 71_567
    if memory() < needed:
        run.note(
            f"Panel (b) was skipped: twelve matrices of {shape[0]:,} × {shape[1]:,} take {needed / 2**30:.0f} GiB, "
            f"and this device has {memory() / 2**30:.0f}."
        )
        return
    run.note("Panel (b) is on drawn ratings of MovieLens 10M's size, not on MovieLens 10M, which is not here.")
    ways = {"SVRG": replace(WAYS["SVRG"], round=25), "GD": WAYS["GD"]}
    found.panels["b"] = follow(drawn(run.seed, shape, 10_000_000), ways, 5000, SECONDS_10M, run.seed)
    keep(run, "b", found)


def memory() -> int:
    """Bytes of the device that JAX computes on."""
    stats = jax.devices()[0].memory_stats() or {}
    return int(stats.get("bytes_limit", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))


def movielens() -> Problem:
    """MovieLens 1M, films as rows, with the test ratings of its file held out."""
    data = load("ml1m")
    _, film = np.unique(np.asarray(data.movie), return_inverse=True)
    person, stars, test = (
        np.asarray(data.user).astype(int) - 1,
        np.asarray(data.rating, float),
        np.asarray(data.is_test),
    )
    ratings = Ratings(film, person, stars, None, (int(film.max()) + 1, int(person.max()) + 1))
    return Problem("MovieLens 1M", ratings.part(~test), ratings.part(test))


def drawn(seed: int, shape: tuple[int, int], count: int) -> Problem:
    """Ratings in half stars of films by people who differ in taste, level and zeal; a tenth held out."""
    rng = np.random.default_rng(seed)
    zeal = [rng.gamma(0.7, size=side) + 0.02 for side in shape]
    film, person = (rng.choice(side, int(1.2 * count), p=zeal[k] / zeal[k].sum()) for k, side in enumerate(shape))
    cells = rng.permutation(np.unique(film.astype(np.int64) * shape[1] + person))[:count]
    film, person = np.divmod(cells, shape[1])
    taste = [rng.normal(size=(side, 8)).astype(np.float32) for side in shape]
    levels = [rng.normal(size=side) for side in shape]
    liked = np.einsum("ij,ij->i", taste[0][film], taste[1][person]) * 0.2 + 0.4 * (levels[0][film] + levels[1][person])
    stars = np.clip(np.round(2 * (3.5 + liked + 0.7 * rng.normal(size=len(film)))) / 2, 0.5, 5.0)
    ratings, held = Ratings(film, person, stars, None, shape), rng.random(len(film)) < 0.1
    return Problem(f"drawn, {shape[0]:,} × {shape[1]:,}", ratings.part(~held), ratings.part(held))


def follow(problem: Problem, ways: dict[str, Way], rounds: int, seconds: float, seed: int) -> dict[str, Path]:
    """Go down in each way from the known ratings and 0 elsewhere; compiling is not on the clock."""
    with jax.enable_x64(False):
        relaxed = Relaxed.of(problem.ratings, low=0.0, high=5.0, threshold=THRESHOLD, smoothing=SMOOTHING)
        held = (
            jnp.asarray(problem.held.rows),
            jnp.asarray(problem.held.columns),
            jnp.asarray(problem.held.values, np.float32),
        )
        error = jax.jit(lambda theta: jnp.sqrt(jnp.mean((theta[held[0], held[1]] - held[2]) ** 2)))
        watch = lambda theta: float(error(theta))
        start, paths, key = relaxed.known(), {}, jax.random.key(seed)
        for name, way in ways.items():
            if np.isfinite(seconds):
                descend(relaxed, start, way, key, rounds=1)
            limit = PATIENCE * seconds if name == "GD" else seconds
            paths[name] = descend(relaxed, start, way, key, rounds=rounds, seconds=limit, watch=watch)
        return paths


def show(run: Run, found: Found) -> None:
    """Draw, tabulate and judge."""
    run.note(_setting())
    titles = {
        "a": "Error on ratings held out by time, four ways.",
        "b": "The same on drawn data of MovieLens 10M's size.",
        "c": "SGD under four laws of the degree, of mean 15.",
        "d": "SGD and SGD-DET at two degrees.",
    }
    for panel in sorted(found.panels):
        fig, axes = plots.figure()
        for number, (name, path) in enumerate(found.panels[panel].items()):
            axes.plot(path.seconds, path.watched, color=plots.PALETTE[number], label=name)
        axes.axhline(_MARK_10M if panel == "b" else _MARK, color=plots.INK, linewidth=0.8, linestyle="--")
        axes.set(xlabel="seconds", ylabel="RMSE")
        axes.legend()
        run.figure(panel, fig, f"({panel}) {titles[panel]}")
    runs = [(panel, name, path) for panel, paths in sorted(found.panels.items()) for name, path in paths.items()]
    run.table(
        "runs",
        {
            "panel": [panel for panel, _, _ in runs],
            "run": [name for _, name, _ in runs],
            "rounds": [len(path.values) for _, _, path in runs],
            "seconds": [path.seconds[-1] for _, _, path in runs],
            "seconds to RMSE 1.5": [path.arrival(_MARK) for _, _, path in runs],
            "to 1.8": [path.arrival(_MARK_10M) for _, _, path in runs],
            "RMSE at the end": [found.end(panel, name) for panel, name, _ in runs],
        },
        "Each from the known ratings and 0 elsewhere.",
    )
    claims.show(run, CLAIMS, found)


def _setting() -> str:
    said = []
    for name, way in WAYS.items():
        words = f"{name} takes steps of {way.step:g}/L"
        if way.method != "gd":
            words += f" with {way.probes} probes of mean degree {way.degree:g}, {way.round} a round"
        said.append(words)
    return (
        "min over θ in [0, 5]^{d×r} of tr (θθᵀ + εI)^½ + λ Σ_Ω (θ − R)². λ, ε, the number of probes, the length of "
        "rounds and the steps are in a supplement that we do not have; here steps were chosen on a twentieth of the "
        "training ratings (benchmarks/nuclear_settings.py). With s = (Σ_Ω R²/d)^½: "
        f"1/(2λ) = {THRESHOLD:g} s, √ε = {SMOOTHING:g} s. With L = 1/√ε + 2λ: " + "; ".join(said) + ". Those of SGD "
        f"and SGD-DET fall as one over the root of their number from the {WAYS['SGD'].decay:.0f}th on; SVRG takes its "
        "next snapshot at the last step of a round. SVRG and SGD have the leading singular value apart, exactly, which "
        "the paper has not; plain SGD and SGD-DET are the paper's, but that groups of probes, not all of them as "
        "SVRG's, share a degree. Products of SVRG and SGD are of TF32 on a GPU that has it: their rounding "
        "is far below the noise of the probes."
    )
