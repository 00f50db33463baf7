"""λ and ε of scgd-figure2, and the steps of its methods, chosen on some of MovieLens 1M's training ratings.

The paper's are in a supplement that we do not have. ``python -m benchmarks.nuclear_settings problem`` follows GD for a
grid of λ and ε, ``... steps`` each of the figure's methods for one grid of steps at the figure's λ and ε, SVRG with
rounds of several lengths, and ``... sizes`` the stochastic methods with other numbers of probes M, and with one degree
for all of them as in Algorithms 1 and 2, at the figure's steps, half and twice those. All have the same seconds,
compiling left out, and what predicts the ratings held out best at its end is taken. ``--share 0.15`` takes a share of
the films and of the people, with √ε and 1/(2λ) over the typical singular value as they are at full size;
``--deadline`` bounds the whole, ``--out`` keeps the lines. At full size it wants a GPU.

``... --figure FOLDER`` goes on to the figure with what was best, in the same process, so that nothing is compiled
twice: ratings held out stay where they are, with weight 0.
"""

import argparse
import json
import time
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from papers import scgd_figure2 as figure
from thalweg.completion import Ratings, Relaxed, Way, descend

STEPS = (0.3, 1.0, 0.1, 0.6, 1.8)
"""Over 1/L, for every method."""

SIZES = ((128, 16), (64, 8), (64, 64), (256, 256), (512, 512), (1024, 1024))
"""Probes, and how many of them share a degree: one of all costs less than the longest of several."""

LENGTHS = (20, 10, 50)
"""Of SVRG's rounds, T: an exact gradient is to cost no more than the steps that it serves."""


def training(share: float) -> Ratings:
    """Training ratings of the file, of some films and people alone."""
    ratings, rng = figure.load_movielens().ratings, np.random.default_rng(0)
    if share >= 1:
        return ratings
    films, people = (np.flatnonzero(rng.random(side) < share) for side in ratings.shape)
    kept = ratings.part(np.isin(ratings.rows, films) & np.isin(ratings.columns, people))
    return Ratings(
        np.searchsorted(films, kept.rows), np.searchsorted(people, kept.columns), kept.values, None,
        (len(films), len(people)),
    )  # fmt: skip


class Judge:
    """A problem without some of its ratings, and the error on these."""

    def __init__(self, ratings: Ratings, threshold: float, smoothing: float, aside: float) -> None:
        held = np.random.default_rng(1).random(len(ratings.values)) < aside
        whole = Relaxed.of(ratings, low=0.0, high=5.0, threshold=threshold, smoothing=smoothing)
        weights = np.array(whole.misfit.weights)
        weights[: len(held)][held] = 0
        self.problem = eqx.tree_at(lambda tree: tree.misfit.weights, whole, jnp.asarray(weights))
        rows, columns = jnp.asarray(ratings.rows[held]), jnp.asarray(ratings.columns[held])
        values = jnp.asarray(ratings.values[held], np.float32)
        self.error = jax.jit(lambda theta: jnp.sqrt(jnp.mean((theta[rows, columns] - values) ** 2)))

    def follow(self, way: Way, seconds: float) -> dict:
        """One run, after a round that compiles."""
        began, start = time.perf_counter(), self.problem.known()
        descend(self.problem, start, way, jax.random.key(0), rounds=1)
        compiling = time.perf_counter() - began
        path = descend(
            self.problem, start, way, jax.random.key(0), rounds=100_000, seconds=seconds,
            watch=lambda theta: float(self.error(theta)), stop=lambda _, errors: not errors[-1] < 4.5,
        )  # fmt: skip
        shown = np.unique(np.linspace(0, len(path.watched) - 1, 12).astype(int))
        return {
            "end": float(np.nan_to_num(figure.Figure2Results(True, {"a": {"": path}}).end("a", ""), nan=np.inf)),
            "seconds to 1.5": path.arrival(1.5),
            "rounds": len(path.values),
            "repeated": path.repeated,
            "seconds a round": path.seconds[-1] / max(len(path.values), 1),
            "compiling": compiling,
            "status": path.status.name,
            "curve": [(round(path.seconds[i], 2), round(path.watched[i], 3)) for i in shown],
        }


def grid(kind: str) -> list[tuple[float, float, str, Way]]:
    """What is tried: λ and ε with GD, or each method's steps."""
    if kind == "problem":
        return [(*pair, "GD", figure.METHODS["GD"]) for pair in product((0.3, 1.0, 3.0), (0.5, 1.0, 2.0, 4.0))]
    given = figure.THRESHOLD, figure.SMOOTHING
    own = [(*given, name, way) for name, way in figure.METHODS.items()]
    if kind == "sizes":
        return [one for one in own if one[2] != "GD"] + [
            (*given, name, replace(way, probes=probes, group=group, step=way.step * times))
            for name, way in figure.METHODS.items()
            # One degree more or less is all the same to a method that has one.
            for probes, group in (SIZES[:1] if way.method == "sgd-det" else SIZES)
            for times in (1.0, 0.5, 2.0)
            if way.method != "gd"
        ]
    # The figure's own first: a deadline may cut the rest.
    others = [
        (*given, name, replace(way, step=step, round=length))
        for step in STEPS
        for name, way in figure.METHODS.items()
        for length in (LENGTHS if way.method == "svrg" else (way.round,))
    ]
    return own + [one for one in others if one not in own]


def main() -> None:
    """Run one grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("problem", "steps", "sizes"))
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--deadline", type=float, default=np.inf)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--aside", type=float, default=0.05)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    began, ratings = time.perf_counter(), training(options.share)
    # A matrix of a share of both sides has singular values as much smaller; the typical one of its ratings by the root.
    smaller = np.sqrt(options.share)
    found: list[dict] = []
    for threshold, smoothing, name, way in grid(options.kind):
        if time.perf_counter() - began > options.deadline:
            print("the deadline has come: the rest was not tried", flush=True)
            break
        judge = Judge(ratings, threshold * smaller, smoothing * smaller, options.aside)
        tried = {"name": name, "threshold": threshold, "smoothing": smoothing, **asdict(way)}
        found.append({**tried, **judge.follow(way, options.seconds)})
        print(f"{time.perf_counter() - began:.0f} s", json.dumps(found[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1))
    if options.figure:
        for name, way in figure.METHODS.items():
            mine = [one for one in found if one["name"] == name]
            if mine:
                best = min(mine, key=lambda one: one["end"])
                chosen = ("step", "round", "probes", "group")
                figure.METHODS[name] = replace(way, **{setting: best[setting] for setting in chosen})
        print(figure.METHODS, flush=True)
        section = figure.scgd_figure2.run(options.figure, quick=False, seed=0)
        print(json.dumps([item for item in section.items if item["kind"] == "table"]), flush=True)


if __name__ == "__main__":
    main()
