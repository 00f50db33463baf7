"""The lasso on the diabetes data: seven methods side by side, and the path of solutions."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Lasso, lasso_path
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from thalweg.descent import FISTA, L1, AdaptiveRestart, minimize
from thalweg.experiments import _race, plots
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run
from thalweg.oracles import Exact

_WEIGHT = 0.05
"""λ, as a share of the smallest λ at which all coefficients are zero."""
_NAMED = 6
"""How many lines of the path are labelled."""


@experiment("demo-lasso", title="The lasso: a sparse linear model", paper="Demonstration", demo=True, order=1)
def demo_lasso(run: Run) -> None:
    """Race the methods at one λ, then follow the solution along a path of λ."""
    features, target, names = _load()
    largest = float(np.abs(features.T @ target).max() / len(target))
    weight = _WEIGHT * largest
    reference = Lasso(alpha=weight, fit_intercept=False, tol=1e-14, max_iter=10**6).fit(features, target).coef_
    with jax.enable_x64(True):
        problem = _problem(features, target, weight, reference)
        lanes = _race.race(problem, passes=300 if run.quick else 3000, seed=run.seed)
        weights, path = _follow(features, target, largest)
    _describe(run, features, target, weight, reference)
    run.table("methods", _race.columns(lanes, lambda x: x), f"The lasso by seven methods. {_race.CAPTION}")
    fig, axes = plots.figure()
    _race.draw(axes, lanes)
    run.figure("gaps", fig, "Relative objective gap (F − F*)/(F(0) − F*) against passes over the data.")
    run.note(_SEEN)
    _show_path(run, weights, path, names)
    _, theirs, _ = lasso_path(features, target, alphas=weights, tol=1e-10, max_iter=10**6)
    difference = float(np.abs(path - theirs.T).max())
    run.note(
        f"The path is {len(weights)} runs of restarted FISTA, each from the solution before it; the weight of a term "
        f"is an argument of the compiled step, so all share one compilation. It differs from scikit-learn's "
        f"lasso_path by at most {difference:.0e}."
    )
    run.numbers("curves", {"optimum": problem.optimum, **_race.numbers(lanes)})
    run.numbers("path", {"weights": weights, "coefficients": path, "names": names, "difference": difference})


_SEEN = (
    "What one sees: momentum pays. Every exact method reaches the optimum, gradient descent last. Nesterov and FISTA, "
    "whose coefficients are nearly the same, lie on top of each other, and ripple once they overshoot; the restart "
    "removes the ripples without being told the condition number. SGD is soon within a few percent and then limited "
    "by its own noise, which the falling step fades slowly; its iterate is hardly sparse. SVRG takes the same small "
    "batches, but its noise vanishes as it converges, and it finds the support."
)


def _load() -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return standardised features (all squares and products included), standardised target, feature names."""
    data = load_diabetes()
    expand = PolynomialFeatures(2, include_bias=False)
    features = StandardScaler().fit_transform(expand.fit_transform(data.data))
    names = [_product(name) for name in expand.get_feature_names_out(data.feature_names)]
    keep = [i for i, name in enumerate(names) if name != "sex²"]  # sex takes two values: its square says it again
    return features[:, keep], StandardScaler().fit_transform(data.target[:, None])[:, 0], [names[i] for i in keep]


def _product(name: str) -> str:
    return name.replace("^2", "²").replace(" ", "·")


def _losses(x, batch):
    features, target = batch
    return 0.5 * (features @ x - target) ** 2


def _problem(features: np.ndarray, target: np.ndarray, weight: float, reference: np.ndarray) -> _race.Problem:
    misfit = features @ reference - target
    return _race.Problem(
        losses=_losses,
        data=(jnp.asarray(features), jnp.asarray(target)),
        term=L1(weight),
        x0=jnp.zeros(features.shape[1]),
        smoothness=float(np.linalg.norm(features, 2) ** 2 / len(target)),
        roughest=float((features**2).sum(axis=1).max()),
        optimum=float(0.5 * np.mean(misfit**2) + weight * np.abs(reference).sum()),
    )


def _follow(features: np.ndarray, target: np.ndarray, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Solve for a falling sequence of λ, each from the last solution."""
    oracle = Exact(lambda x, *data: _losses(x, data).mean(), jnp.asarray(features), jnp.asarray(target))
    step = len(target) / float(np.linalg.norm(features, 2) ** 2)
    weights = largest * np.geomspace(1, 0.01, 40)
    x, path = jnp.zeros(features.shape[1]), []
    for weight in weights:
        x = minimize(oracle, x, term=L1(weight), step=step, momentum=AdaptiveRestart(FISTA())).x
        path.append(np.asarray(x))
    return weights, np.array(path)


def _describe(run: Run, features: np.ndarray, target: np.ndarray, weight: float, reference: np.ndarray) -> None:
    slope = features.T @ (features @ reference - target) / len(target)
    active = reference != 0
    violation = max(
        np.abs(slope[active] + weight * np.sign(reference[active])).max(),
        (np.abs(slope[~active]) - weight).max(),
    )
    run.note(
        f"Minimise ‖Ax − b‖²/2n + λ‖x‖₁: the progress of diabetes in {len(target)} patients from {features.shape[1]} "
        f"features (ten measurements, their squares and products), all standardised; λ is {_WEIGHT:.0%} of the value "
        f"at which every coefficient is zero. Every method starts at zero and takes its step from the data: 1/L for "
        f"exact gradients, L the largest eigenvalue of AᵀA/n; the same for a batch of 8, constant for SVRG and falling "
        f"as 1/t after ten epochs for SGD. Heavy ball has momentum 0.9; restarted is FISTA with adaptive restart. The "
        f"optimum F* is scikit-learn's, by coordinate descent; it violates the optimality conditions by "
        f"{violation:.0e}. Everything runs in float64."
    )


def _show_path(run: Run, weights: np.ndarray, path: np.ndarray, names: list[str]) -> None:
    fig, axes = plots.figure()
    leading = np.argsort(-np.abs(path[len(path) // 2]))[:_NAMED]
    for i in range(path.shape[1]):
        if i not in leading:
            axes.semilogx(weights / weights[0], path[:, i], color=plots.PALETTE[-1], linewidth=0.8, alpha=0.5)
    for i in leading:
        axes.semilogx(weights / weights[0], path[:, i], label=names[i])
    axes.invert_xaxis()
    axes.axvline(_WEIGHT, color=plots.INK, linestyle=":", linewidth=1)
    axes.set_xlabel("λ / λ at which all are zero")
    axes.set_ylabel("coefficient")
    plots.label_lines(axes)
    run.figure("path", fig, "The coefficients as λ falls; the dotted line is the λ of the race.")
