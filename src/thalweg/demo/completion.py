"""A matrix of ratings before and after: MatrixCompletion on a generated set, and its errors against its intervals."""

import numpy as np
from matplotlib.figure import Figure

from thalweg.experiments import plots
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run
from thalweg.models import MatrixCompletion

_PEOPLE, _FILMS, _KNOWN, _NOISE = 90, 60, 0.25, 0.5


@experiment(
    "demo-completion",
    title="A matrix of ratings, completed, with an interval for every cell",
    paper="Demonstration",
    demo=True,
    order=6,
)
def demo_completion(run: Run) -> None:
    """Hide three ratings in four, find them again, and count how often intervals hold."""
    rng = np.random.default_rng(run.seed)
    truth, stars = _drawn(rng)
    # Some people have rated much and some hardly anything.
    eager = rng.beta(0.8, 2.4, size=(_PEOPLE, 1))
    known = rng.random(stars.shape) < eager * _KNOWN / eager.mean()
    cells, hidden = np.argwhere(known), np.argwhere(~known)
    model = MatrixCompletion(rank=8, presence=False, tol=1e-3, random_state=run.seed)
    model.fit(cells, stars[known])
    mean, deviation = model.predict(hidden, return_std=True)
    low, high = model.predict_interval(hidden)
    covered = (stars[~known] >= low) & (stars[~known] <= high)
    few = known.sum(axis=1)[hidden[:, 0]] < 10
    run.note(
        f"{_PEOPLE} people rated {_FILMS} films with one to five stars. MatrixCompletion is shown {known.sum():,} of "
        f"these {stars.size:,} ratings and allowed 8 factors: it found {np.sum(model.strengths_ > 0.1)} that matter, "
        "of 2."
    )
    run.figure("matrix", _matrices(model, known, stars), "The ratings that are known, all means predicted, the truth.")
    run.figure(
        "errors",
        _errors(mean, deviation, stars[~known]),
        "Errors of hidden ratings against the standard deviation predicted for them, in ten groups. On the line they "
        "are as large as predicted.",
    )
    films = np.array([stars[known[:, film], film].mean() if known[:, film].any() else 3.0 for film in range(_FILMS)])
    error = lambda found, some: float(np.sqrt(np.mean((found - stars[~known])[some] ** 2)))
    parts = {"all": np.ones(len(mean), bool), "of people with fewer than ten ratings": few}
    run.table(
        "intervals",
        {
            "hidden ratings": list(parts),
            "number": [int(some.sum()) for some in parts.values()],
            "RMSE": [error(mean, some) for some in parts.values()],
            "RMSE of the film's mean": [error(films[hidden[:, 1]], some) for some in parts.values()],
            "within the 95 % interval": [f"{100 * covered[some].mean():.1f} %" for some in parts.values()],
        },
        "Of people with few ratings less is known, and their intervals are as much wider.",
    )
    run.numbers(
        "found",
        {
            "strengths": model.strengths_,
            "noise": model.noise_,
            "rmse": error(mean, parts["all"]),
            "coverage": float(covered.mean()),
            "spread of the truth": float(truth.std()),
        },
    )


def _drawn(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """What people think of films, and the stars that they give; both in an order that shows the pattern."""
    taste, kind = rng.normal(size=(_PEOPLE, 2)), rng.normal(size=(_FILMS, 2))
    taste, kind = taste[np.argsort(taste[:, 0])], kind[np.argsort(kind[:, 0])]
    truth = 3.2 + 0.4 * rng.normal(size=(_PEOPLE, 1)) + taste @ np.diag([0.9, 0.5]) @ kind.T
    return truth, np.clip(np.round(truth + _NOISE * rng.normal(size=truth.shape)), 1, 5)


def _matrices(model: MatrixCompletion, known: np.ndarray, stars: np.ndarray) -> Figure:
    every = np.argwhere(np.ones_like(known))
    after = model.predict(every).reshape(known.shape)
    fig, axes = plots.figure(3, height=3.6)
    for ax, values, title in zip(
        axes, (np.where(known, stars, np.nan), after, stars), ("known", "predicted", "truth"), strict=True
    ):
        shown = ax.imshow(values, aspect="auto", cmap="viridis", vmin=1, vmax=5, interpolation="nearest")
        ax.set_title(title)
        ax.set_xlabel("film")
        ax.grid(visible=False)
    axes[0].set_ylabel("person")
    fig.colorbar(shown, ax=axes[-1], label="stars")
    return fig


def _errors(mean: np.ndarray, deviation: np.ndarray, stars: np.ndarray) -> Figure:
    fig, ax = plots.figure()
    groups = np.array_split(np.argsort(deviation), 10)
    predicted = [np.sqrt(np.mean(deviation[group] ** 2)) for group in groups]
    seen = [np.sqrt(np.mean((mean - stars)[group] ** 2)) for group in groups]
    most = max(*predicted, *seen) * 1.1
    ax.plot([0, most], [0, most], color=plots.INK, linewidth=1, linestyle="--", label="as large as predicted")
    ax.scatter(predicted, seen, color=plots.PALETTE[0], label="a tenth of the hidden ratings", zorder=3)
    ax.set(xlabel="standard deviation predicted", ylabel="root mean square error")
    ax.legend()
    return fig
