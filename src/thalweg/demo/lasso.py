"""The lasso on the diabetes data: seven methods side by side, and the path of solutions."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Lasso, lasso_path
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from thalweg.demo import plots
from thalweg.demo.comparison import FiniteSum, compare, show_curves
from thalweg.demo.section import Section, experiment
from thalweg.descent import L1, minimize

# λ, as a share of the smallest λ at which all coefficients are zero. Twice as much leaves fewer coefficients.
WEIGHT = 0.05


@experiment("demo-lasso", title="The lasso: a sparse linear model", paper="Demonstration")
def lasso(section: Section) -> None:
    """Compare the methods at one λ, then follow the solution along a path of λ."""
    features, target, names = _load()
    largest = float(np.abs(features.T @ target).max() / len(target))
    weight = WEIGHT * largest
    reference = Lasso(alpha=weight, fit_intercept=False, tol=1e-14, max_iter=10**6).fit(features, target).coef_
    with jax.enable_x64(True):
        problem = FiniteSum(
            losses=_losses,
            data=(jnp.asarray(features), jnp.asarray(target)),
            term=L1(weight),
            x0=jnp.zeros(features.shape[1]),
            smoothness=float(np.linalg.norm(features, 2) ** 2 / len(target)),
            max_smoothness=float((features**2).sum(axis=1).max()),
            optimum=float(0.5 * np.mean((features @ reference - target) ** 2) + weight * np.abs(reference).sum()),
        )
        violation = problem.violation(jnp.asarray(reference))
        curves = compare(problem, passes=300, seed=section.seed)
        weights, path = _follow_path(problem, largest)
    section.note(
        f"Minimise ‖Ax − b‖²/2n + λ‖x‖₁: the progress of diabetes in {len(target)} patients from {features.shape[1]} "
        f"features (ten measurements, their squares and products), all standardised; λ is {WEIGHT:.0%} of the value "
        f"at which every coefficient is zero. Every method starts at zero and takes its step from the data: 1/L for "
        f"exact gradients, L the largest eigenvalue of AᵀA/n; the same for a batch of 8, constant for SVRG and falling "
        f"as 1/t after ten epochs for SGD. Heavy ball has momentum 0.9; restarted is FISTA with adaptive restart. The "
        f"optimum F* is scikit-learn's, by coordinate descent; it violates the optimality conditions by "
        f"{violation:.0e}. Everything runs in float64."
    )
    show_curves(section, problem, curves, lambda x: x, "The lasso by seven methods.")
    section.note(
        "What one sees: momentum pays. Every exact method reaches the optimum, gradient descent last. Nesterov and "
        "FISTA, whose coefficients are nearly the same, lie on top of each other, and ripple once they overshoot; the "
        "restart removes the ripples without being told the condition number. SGD is soon within a few percent and "
        "then limited by its own noise, which the falling step fades slowly; its iterate is hardly sparse. SVRG takes "
        "the same small batches, but its noise vanishes as it converges, and it finds the support."
    )
    with section.figure("path", "The coefficients as λ falls; the dotted line is the λ of the comparison.") as axes:
        order = np.argsort(-np.abs(path[len(path) // 2]))
        axes.semilogx(weights / largest, path[:, order[6:]], color=plots.PALETTE[-1], linewidth=0.8, alpha=0.5)
        axes.semilogx(weights / largest, path[:, order[:6]], label=[names[i] for i in order[:6]])
        axes.invert_xaxis()
        axes.axvline(WEIGHT, color=plots.INK, linestyle=":", linewidth=1)
        axes.set(xlabel="λ / λ at which all are zero", ylabel="coefficient")
        plots.label_lines(axes)
    _, peer, _ = lasso_path(features, target, alphas=weights, tol=1e-10, max_iter=10**6)
    difference = float(np.abs(path - peer.T).max())
    section.note(
        f"The path is {len(weights)} runs of restarted FISTA, each from the solution before it; the weight of a term "
        f"is an argument of the compiled step, so all share one compilation. It differs from scikit-learn's "
        f"lasso_path by at most {difference:.0e}."
    )
    section.numbers("path", {"weights": weights, "coefficients": path, "names": names, "difference": difference})


def _load() -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return standardised features (all squares and products included), standardised target, feature names."""
    data = load_diabetes()
    expand = PolynomialFeatures(2, include_bias=False)
    features = StandardScaler().fit_transform(expand.fit_transform(data.data))
    names = [name.replace("^2", "²").replace(" ", "·") for name in expand.get_feature_names_out(data.feature_names)]
    chosen = [i for i, name in enumerate(names) if name != "sex²"]  # sex takes two values: its square is the same
    return features[:, chosen], StandardScaler().fit_transform(data.target[:, None])[:, 0], [names[i] for i in chosen]


def _losses(x, batch):
    features, target = batch
    return 0.5 * (features @ x - target) ** 2


def _follow_path(problem: FiniteSum, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Solve for a falling sequence of λ, each from the last solution."""
    method = problem.methods()["restarted"]
    weights = largest * np.geomspace(1, 0.01, 40)
    x, path = problem.x0, []
    for weight in weights:
        x = minimize(x0=x, term=L1(weight), **method).x
        path.append(np.asarray(x))
    return weights, np.array(path)
