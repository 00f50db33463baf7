"""λ, ε, probes, rounds and steps of scgd-figure2, chosen on a tenth of MovieLens 1M's training ratings.

The paper's are in a supplement that we do not have. ``python -m benchmarks.nuclear_settings problem`` follows GD for a
grid of λ and ε; ``... steps`` follows each method at the figure's λ and ε for the same grid of steps, the stochastic
ones also for some numbers of probes and lengths of rounds. A line each: seconds to an RMSE of 1.5 on the ratings held
out, the least RMSE, and the seconds of a round. ``--share 0.15`` takes a share of the films and of the people, with √ε
and 1/(2λ) over the typical singular value as they are at full size; ``--seconds`` bounds a run and ``--deadline`` them
all, ``--out`` keeps the lines. At full size it wants a GPU.
"""

import argparse
import json
import time
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.completion import Ratings, Relaxed, Way, descend
from thalweg.experiments import scgd_figure2 as figure

STEPS = (0.3, 0.1, 1.0, 0.03, 1.8, 0.01)
"""Over 1/L, for every method; the likeliest first, since a deadline may cut the rest."""

MARK, ENOUGH = 1.5, 1.42
"""The paper's mark, and where a run may end."""


def held_out(share: float) -> tuple[Ratings, Ratings]:
    """Training ratings of the file without a tenth, and that tenth; of some films and people alone."""
    ratings, rng = figure.movielens().ratings, np.random.default_rng(0)
    films, people = (np.flatnonzero(rng.random(side) < share) for side in ratings.shape)
    kept = ratings.part(np.isin(ratings.rows, films) & np.isin(ratings.columns, people))
    kept = Ratings(
        np.searchsorted(films, kept.rows), np.searchsorted(people, kept.columns), kept.values, None,
        (len(films), len(people)),
    )  # fmt: skip
    aside = rng.random(len(kept.values)) < 0.1
    return kept.part(~aside), kept.part(aside)


def follow(train: Ratings, held: Ratings, threshold: float, smoothing: float, way: Way, seconds: float) -> dict:
    """One run, after a round that compiles."""
    problem = Relaxed.of(train, low=0.0, high=5.0, threshold=threshold, smoothing=smoothing)
    rows, columns, values = jnp.asarray(held.rows), jnp.asarray(held.columns), jnp.asarray(held.values, np.float32)
    error = jax.jit(lambda theta: jnp.sqrt(jnp.mean((theta[rows, columns] - values) ** 2)))
    began = time.perf_counter()
    figure.compile_all(problem, problem.known(), way)
    compiling = time.perf_counter() - began
    path = descend(
        problem, problem.known(), way, jax.random.key(0), rounds=5000, seconds=seconds, watch=lambda x: float(error(x)),
        stop=lambda _, errors: errors[-1] < ENOUGH,
    )  # fmt: skip
    shown = np.unique(np.linspace(0, len(path.watched) - 1, 12).astype(int))
    return {
        "seconds to the mark": path.arrival(MARK),
        "least": min(path.watched),
        "rounds": len(path.values),
        "seconds a round": path.seconds[-1] / max(len(path.values), 1),
        "compiling": compiling,
        "status": path.status.name,
        "curve": [(round(path.seconds[i], 2), round(path.watched[i], 3)) for i in shown],
    }


def grid(kind: str) -> list[tuple[float, float, Way]]:
    """What is tried: λ and ε with GD, or each method's steps."""
    if kind == "problem":
        tried = product((0.5, 1.0, 2.0), (0.5, 1.0, 2.0))
        return [(threshold, smoothing, figure.WAYS["GD"]) for threshold, smoothing in tried]
    given = figure.THRESHOLD, figure.SMOOTHING
    gd, svrg, sgd, fixed = (figure.WAYS[name] for name in ("GD", "SVRG", "SGD", "SGD-DET"))
    ways = [replace(gd, step=1.8)]
    for step in STEPS:
        ways += [replace(way, step=step) for way in (svrg, sgd, fixed)]
    ways += [replace(svrg, round=length) for length in (20, 150)] + [replace(svrg, probes=2 * svrg.probes)]
    ways += [replace(svrg, restart="mean"), replace(svrg, precision="highest"), replace(sgd, precision="highest")]
    ways += [replace(gd, step=step) for step in STEPS if step != 1.8]
    return [(*given, way) for way in ways]


def main() -> None:
    """Run one grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("problem", "steps"))
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--deadline", type=float, default=np.inf)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.perf_counter()
    train, held = held_out(options.share)
    # A matrix of a share of both sides has singular values as much smaller; the typical one of its ratings by the root.
    smaller = np.sqrt(options.share)
    found = []
    for threshold, smoothing, way in grid(options.kind):
        if time.perf_counter() - began > options.deadline:
            print("the deadline has come: the rest was not tried", flush=True)
            break
        seconds = 6 * options.seconds if way.method == "gd" and way.step == 1.8 else options.seconds
        tried = {"threshold": threshold, "smoothing": smoothing, **asdict(way)}
        found.append({**tried, **follow(train, held, threshold * smaller, smoothing * smaller, way, seconds)})
        print(f"{time.perf_counter() - began:.0f} s", json.dumps(found[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
