"""A matrix of ratings before and after: MatrixCompletion on generated ratings, and its errors against its intervals."""

import numpy as np

from thalweg.demo import plots
from thalweg.demo.section import Section, experiment
from thalweg.models import MatrixCompletion

# People and films, and the share of ratings that is known. Twice as many people double the ratings and the work.
PEOPLE, FILMS, KNOWN = 90, 60, 0.25


@experiment(
    "demo-completion", title="A matrix of ratings, completed, with an interval for every cell", paper="Demonstration"
)
def completion(section: Section) -> None:
    """Hide three ratings in four, predict them, and count how often intervals hold."""
    rng = np.random.default_rng(section.seed)
    opinions, stars = _draw_ratings(rng)
    # Some people have rated much and some hardly anything.
    eagerness = rng.beta(0.8, 2.4, size=(PEOPLE, 1))
    known = rng.random(stars.shape) < eagerness * KNOWN / eagerness.mean()
    model = MatrixCompletion(rank=8, presence=False, tol=1e-3, random_state=section.seed)
    model.fit(np.argwhere(known), stars[known])
    hidden, truth = np.argwhere(~known), stars[~known]
    mean, deviation = model.predict(hidden, return_std=True)
    low, high = model.predict_interval(hidden)
    covered = (truth >= low) & (truth <= high)
    section.note(
        f"{PEOPLE} people rated {FILMS} films with one to five stars. MatrixCompletion is shown {known.sum():,} of "
        f"these {stars.size:,} ratings and allowed 8 factors: it found {np.sum(model.strengths_ > 0.1)} that matter, "
        "of 2."
    )
    _draw_matrices(section, model, known, stars)
    _draw_errors(section, mean - truth, deviation)
    film_means = np.array([stars[rated, film].mean() if rated.any() else 3.0 for film, rated in enumerate(known.T)])
    rmse = lambda predicted, part: float(np.sqrt(np.mean((predicted - truth)[part] ** 2)))
    few_ratings = known.sum(axis=1)[hidden[:, 0]] < 10
    parts = {"all": np.ones(len(mean), bool), "of people with fewer than ten ratings": few_ratings}
    section.table(
        "intervals",
        {
            "hidden ratings": list(parts),
            "number": [int(part.sum()) for part in parts.values()],
            "RMSE": [rmse(mean, part) for part in parts.values()],
            "RMSE of the film's mean": [rmse(film_means[hidden[:, 1]], part) for part in parts.values()],
            "within the 95 % interval": [f"{100 * covered[part].mean():.1f} %" for part in parts.values()],
        },
        "Of people with few ratings less is known, and their intervals are as much wider.",
    )
    section.numbers(
        "results",
        {
            "strengths": model.strengths_,
            "noise": model.noise_,
            "rmse": rmse(mean, parts["all"]),
            "coverage": float(covered.mean()),
            "spread of the truth": float(opinions.std()),
        },
    )


def _draw_ratings(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return what people think of films, and the stars that they give; both in an order that shows the pattern."""
    taste, kind = rng.normal(size=(PEOPLE, 2)), rng.normal(size=(FILMS, 2))
    taste, kind = taste[np.argsort(taste[:, 0])], kind[np.argsort(kind[:, 0])]
    opinions = 3.2 + 0.4 * rng.normal(size=(PEOPLE, 1)) + taste @ np.diag([0.9, 0.5]) @ kind.T
    return opinions, np.clip(np.round(opinions + 0.5 * rng.normal(size=opinions.shape)), 1, 5)


def _draw_matrices(section: Section, model: MatrixCompletion, known: np.ndarray, stars: np.ndarray) -> None:
    predicted = model.predict(np.argwhere(np.ones_like(known))).reshape(known.shape)
    panels = {"known": np.where(known, stars, np.nan), "predicted": predicted, "truth": stars}
    caption = "The ratings that are known, all means predicted, the truth."
    with section.figure("matrix", caption, columns=3, height=3.6) as axes:
        for ax, (title, values) in zip(axes, panels.items(), strict=True):
            image = ax.imshow(values, aspect="auto", cmap="viridis", vmin=1, vmax=5, interpolation="nearest")
            ax.set(title=title, xlabel="film")
            ax.grid(visible=False)
        axes[0].set_ylabel("person")
        axes[0].figure.colorbar(image, ax=axes[-1], label="stars")


def _draw_errors(section: Section, errors: np.ndarray, deviation: np.ndarray) -> None:
    groups = np.array_split(np.argsort(deviation), 10)
    predicted, observed = ([np.sqrt(np.mean(part[group] ** 2)) for group in groups] for part in (deviation, errors))
    end = max(*predicted, *observed) * 1.1
    caption = (
        "Errors of hidden ratings against the standard deviation predicted for them, in ten groups. On the line they "
        "are as large as predicted."
    )
    with section.figure("errors", caption) as axes:
        axes.plot([0, end], [0, end], color=plots.INK, linewidth=1, linestyle="--", label="as large as predicted")
        axes.scatter(predicted, observed, color=plots.PALETTE[0], label="a tenth of the hidden ratings", zorder=3)
        axes.set(xlabel="standard deviation predicted", ylabel="root mean square error")
        axes.legend()
