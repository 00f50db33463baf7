"""Sparse logistic regression on the breast cancer data, by the elastic net; the intercept is left unpenalised."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize as scipy_minimize
from scipy.special import expit
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from thalweg.descent import ElasticNet, PerLeaf, Zero
from thalweg.experiments import _race, plots
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run

_SPARSITY, _RIDGE = 0.02, 0.02


@experiment(
    "demo-logistic", title="Sparse logistic regression: benign or malignant", paper="Demonstration", demo=True, order=2
)
def demo_logistic(run: Run) -> None:
    """Race the methods, then look at the classifier they agree on."""
    train, test, names = _load(run.seed)
    reference = _Reference(*train)
    with jax.enable_x64(True):
        problem = _problem(*train, reference.value)
        lanes = _race.race(problem, passes=700 if run.quick else 3000, seed=run.seed)
    _describe(run, train, test, reference)
    table = _race.columns(lanes, lambda x: x["weights"])
    run.table("methods", table, f"Sparse logistic regression by seven methods. {_race.CAPTION}")
    fig, axes = plots.figure()
    _race.draw(axes, lanes)
    run.figure("gaps", fig, "Relative objective gap (F − F*)/(F(0) − F*) against passes over the data.")
    run.note(f"{_SEEN} {_accuracies(lanes, test)}")
    best = min(lanes, key=lambda lane: lane.gaps[-1])
    _show_weights(run, best.x["weights"], names)
    run.numbers("curves", {"optimum": reference.value, **_race.numbers(lanes)})


_SEEN = (
    "What one sees: much the same as for the lasso, on a function that is not quadratic. Gradient descent needs "
    "several times the passes of the accelerated methods; heavy ball starts slowly and ends well; the restart takes "
    "the ripples out of FISTA. SGD is first to a rough solution and far from sparse; SVRG goes on to the last digit."
)


def _load(seed: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray], list[str]]:
    """Return training part, test part (features, labels ±1, standardised as the training part) and names."""
    data = load_breast_cancer()
    labels = np.where(data.target == 0, 1.0, -1.0)  # 0 means malignant there
    features, held_out, y, y_held_out = train_test_split(data.data, labels, test_size=0.25, random_state=seed)
    scale = StandardScaler().fit(features)
    return (scale.transform(features), y), (scale.transform(held_out), y_held_out), list(data.feature_names)


def _losses(x, batch):
    features, labels = batch
    return jax.nn.softplus(-labels * (features @ x["weights"] + x["intercept"]))


def _problem(features: np.ndarray, labels: np.ndarray, optimum: float) -> _race.Problem:
    extended = np.column_stack([features, np.ones(len(labels))])  # the intercept is a weight of the constant 1
    return _race.Problem(
        losses=_losses,
        data=(jnp.asarray(features), jnp.asarray(labels)),
        term=PerLeaf({"weights": ElasticNet(_SPARSITY, _RIDGE), "intercept": Zero()}),
        x0={"weights": jnp.zeros(features.shape[1]), "intercept": jnp.zeros(())},
        smoothness=float(np.linalg.norm(extended, 2) ** 2 / (4 * len(labels))),
        roughest=float((extended**2).sum(axis=1).max() / 4),
        optimum=optimum,
    )


class _Reference:
    """The optimum by other means: a quasi-Newton method finds the support, Newton's method on it the digits."""

    def __init__(self, features: np.ndarray, labels: np.ndarray) -> None:
        self.rows = labels[:, None] * np.column_stack([features, np.ones(len(labels))])
        self.penalty = np.append(np.full(features.shape[1], _SPARSITY), 0.0)
        self.ridge = np.append(np.full(features.shape[1], _RIDGE), 0.0)
        self.x = self._polished(self._near())
        self.value = self.objective(self.x)
        slope, active = self._slope(self.x), self.x != 0
        self.violation = max(
            np.abs(slope + self.penalty * np.sign(self.x))[active].max(),
            (np.abs(slope) - self.penalty)[~active].max(),
        )

    def objective(self, x: np.ndarray) -> float:
        """F(x); the intercept is the last entry of x."""
        return self._smooth(x) + float(self.penalty @ np.abs(x))

    def _smooth(self, x: np.ndarray) -> float:
        return float(np.logaddexp(0, -self.rows @ x).mean() + self.ridge @ x**2 / 2)

    def _slope(self, x: np.ndarray) -> np.ndarray:
        return self.ridge * x - self.rows.T @ expit(-self.rows @ x) / len(self.rows)

    def _near(self) -> np.ndarray:
        """Minimise over x = u − v with u, v ≥ 0, where the penalty is linear."""

        def split(parts: np.ndarray) -> tuple[float, np.ndarray]:
            u, v = np.split(parts, 2)
            slope = self._slope(u - v)
            value = self._smooth(u - v) + self.penalty @ (u + v)
            return value, np.concatenate([slope + self.penalty, -slope + self.penalty])

        start = np.zeros(2 * len(self.penalty))
        options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-10}
        found = scipy_minimize(
            split, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(start), options=options
        )
        u, v = np.split(found.x, 2)
        return u - v

    def _polished(self, x: np.ndarray) -> np.ndarray:
        x = np.where(np.abs(x) > 1e-6, x, 0.0)
        active = np.flatnonzero(x)
        rows = self.rows[:, active]
        for _ in range(20):
            p = expit(-self.rows @ x)
            hessian = (rows.T * (p * (1 - p))) @ rows / len(rows) + np.diag(self.ridge[active])
            slope = (self._slope(x) + self.penalty * np.sign(x))[active]
            x[active] -= np.linalg.solve(hessian, slope)
        return x


def _accuracies(lanes: Sequence[_race.Lane], test: tuple[np.ndarray, np.ndarray]) -> str:
    features, labels = test
    signs = [np.sign(features @ lane.x["weights"] + lane.x["intercept"]) for lane in lanes]
    found = [float(np.mean(sign == labels)) for sign in signs]
    figures = f"{min(found):.1%}" if min(found) == max(found) else f"between {min(found):.1%} and {max(found):.1%}"
    return (
        f"On the held-out tumours the accuracy is {figures} whatever the method: it is settled long before the last "
        f"digits, which buy the right support."
    )


def _describe(run: Run, train: tuple[np.ndarray, ...], test: tuple[np.ndarray, ...], reference: "_Reference") -> None:
    run.note(
        f"Minimise the mean logistic loss plus λ₁‖w‖₁ + λ₂‖w‖²/2 with λ₁ = {_SPARSITY:g}, λ₂ = {_RIDGE:g}, for "
        f"{len(train[1])} tumours with {train[0].shape[1]} standardised measurements, many of them nearly copies of "
        f"each other, which is what the square is for; {len(test[1])} more are held out. The penalty is on the weights "
        f"and not on the intercept: PerLeaf gives each leaf of the parameters a term of its own. Start, steps and "
        f"batches are chosen as for the lasso. The optimum F* comes from SciPy's L-BFGS-B on the split x = u − v, "
        f"finished by Newton's method on the support; it violates the optimality conditions by "
        f"{reference.violation:.0e}."
    )


def _show_weights(run: Run, weights: np.ndarray, names: list[str]) -> None:
    order = [i for i in np.argsort(np.abs(weights)) if weights[i] != 0]
    fig, axes = plots.figure(height=0.8 + 0.2 * len(order))
    colours = [plots.PALETTE[1] if weights[i] > 0 else plots.PALETTE[0] for i in order]
    axes.barh([names[i] for i in order], weights[order], color=colours)
    axes.axvline(0, color=plots.INK, linewidth=0.8)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("weight (positive: towards malignant)")
    run.figure("weights", fig, f"The {len(order)} weights that are not zero, of {len(weights)}.")
