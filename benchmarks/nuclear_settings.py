"""λ, ε, probes, rounds and steps of scgd-figure2, chosen on some of MovieLens 1M's training ratings.

The paper's are in a supplement that we do not have. ``python -m benchmarks.nuclear_settings problem`` follows GD for a
grid of λ and ε; ``... steps`` follows each method at the figure's λ and ε for one grid of steps, and SVRG also for
other probes, rounds and restarts. A line each: seconds to an RMSE of 1.5 on the ratings held out, the least RMSE, that
of the last quarter of the run, and the seconds of a round. GD and SVRG are chosen by the first, SGD and SGD-DET, which
have noise, by the third. ``--share 0.15`` takes a share of the films and of the people, with √ε and 1/(2λ) over the
typical singular value as they are at full size; ``--aside`` is the share of ratings held out, ``--seconds`` bounds a
run and ``--deadline`` them all, ``--out`` keeps the lines. At full size it wants a GPU.

``... steps --figure FOLDER`` goes on to the figure with what was best, in the same process, so that nothing is compiled
twice if few ratings are held out.
"""

import argparse
import json
import time
from dataclasses import asdict, fields, replace
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.completion import Ratings, Relaxed, Way, descend
from thalweg.experiments import scgd_figure2 as figure
from thalweg.experiments.registry import execute, find

STEPS = (1.0, 0.6, 1.8, 0.1, 0.3, 0.03)
"""Over 1/L, for every method; the likeliest first, since a deadline may cut the rest."""

MARK, ENOUGH = 1.5, 1.42
"""The paper's mark, and where a run may end."""


METHODS = {"GD": "gd", "SVRG": "svrg", "SGD": "sgd", "SGD-DET": "sgd-det"}


def held_out(share: float, part: float = 0.1) -> tuple[Ratings, Ratings]:
    """Training ratings of the file without some, and those; of some films and people alone."""
    ratings, rng = figure.movielens().ratings, np.random.default_rng(0)
    films, people = (np.flatnonzero(rng.random(side) < share) for side in ratings.shape)
    kept = ratings.part(np.isin(ratings.rows, films) & np.isin(ratings.columns, people))
    kept = Ratings(
        np.searchsorted(films, kept.rows), np.searchsorted(people, kept.columns), kept.values, None,
        (len(films), len(people)),
    )  # fmt: skip
    aside = rng.random(len(kept.values)) < part
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
        stop=lambda _, errors: way.method in ("gd", "svrg") and errors[-1] < ENOUGH,
    )  # fmt: skip
    shown = np.unique(np.linspace(0, len(path.watched) - 1, 12).astype(int))
    return {
        "seconds to the mark": path.arrival(MARK),
        "least": min(path.watched),
        "end": figure.Found(True, {"a": {"": path}}).end("a", ""),
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
    ways = []
    for step, smaller in zip(STEPS, (*STEPS[3:], *STEPS[:3]), strict=True):  # SGD's are likely smaller
        ways += [replace(svrg, step=step), replace(sgd, step=smaller), replace(fixed, step=smaller)]
    ways += [gd] + [replace(gd, step=step) for step in STEPS if step != gd.step]
    ways += [replace(svrg, round=length) for length in (10, 50)] + [replace(svrg, probes=svrg.probes // 4)]
    ways += [replace(svrg, restart="mean"), replace(svrg, precision="highest"), replace(sgd, precision="highest")]
    return [(*given, way) for way in ways]


def best(found: list[dict]) -> dict[str, Way]:
    """The way of each method that was first at the mark or else came nearest; of SGD and SGD-DET, that ended lowest."""
    chosen = {}
    for name, method in METHODS.items():
        mine = [one for one in found if one["method"] == method]
        if mine:
            noisy = method.startswith("sgd")
            order = lambda one, noisy=noisy: (one["end"],) if noisy else (one["seconds to the mark"], one["least"])
            first = min(mine, key=order)
            chosen[name] = Way(**{item.name: first[item.name] for item in fields(Way)})
    return chosen


def main() -> None:
    """Run one grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("problem", "steps"))
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--deadline", type=float, default=np.inf)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--aside", type=float, default=0.1)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    began = time.perf_counter()
    train, held = held_out(options.share, options.aside)
    # A matrix of a share of both sides has singular values as much smaller; the typical one of its ratings by the root.
    smaller = np.sqrt(options.share)
    found = []
    for threshold, smoothing, way in grid(options.kind):
        if time.perf_counter() - began > options.deadline:
            print("the deadline has come: the rest was not tried", flush=True)
            break
        seconds = 5 * options.seconds if way == figure.WAYS["GD"] else options.seconds
        tried = {"threshold": threshold, "smoothing": smoothing, **asdict(way)}
        found.append({**tried, **follow(train, held, threshold * smaller, smoothing * smaller, way, seconds)})
        print(f"{time.perf_counter() - began:.0f} s", json.dumps(found[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1))
    if options.figure:
        figure.WAYS.update(best(found))
        print(figure.WAYS, flush=True)
        section = execute(find("scgd-figure2"), options.figure, quick=False, seed=0)
        print(json.dumps([item for item in section.items if item["kind"] == "table"]), flush=True)


if __name__ == "__main__":
    main()
