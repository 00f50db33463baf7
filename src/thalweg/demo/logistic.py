"""Sparse logistic regression on the breast cancer data, by the elastic net; the intercept is not penalised."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from thalweg.demo import plots
from thalweg.demo.comparison import FiniteSum, compare, show_curves
from thalweg.demo.section import Section, experiment
from thalweg.descent import ElasticNet, PerLeaf, Zero

# λ₁ of ‖w‖₁ and λ₂ of ‖w‖²/2. Twice as much leaves fewer weights.
WEIGHT = 0.02


@experiment("demo-logistic", title="Sparse logistic regression: benign or malignant", paper="Demonstration")
def logistic(section: Section) -> None:
    """Compare the methods, then look at the classifier they agree on."""
    data = load_breast_cancer()
    labels = np.where(data.target == 0, 1.0, -1.0)  # 0 means malignant there
    train, test, y, y_test = train_test_split(data.data, labels, test_size=0.25, random_state=section.seed)
    scale = StandardScaler().fit(train)
    train, test = scale.transform(train), scale.transform(test)
    with jax.enable_x64(True):
        problem, violation = elastic_net(train, y)
        curves = compare(problem, passes=700, seed=section.seed)
    section.note(
        f"Minimise the mean logistic loss plus λ₁‖w‖₁ + λ₂‖w‖²/2 with λ₁ = λ₂ = {WEIGHT:g}, for "
        f"{len(train)} tumours with {train.shape[1]} standardised measurements, many of them nearly copies of "
        f"each other, which is what the square is for; {len(test)} more are held out. The penalty is on the weights "
        f"and not on the intercept: PerLeaf gives each leaf of the parameters a term of its own. Start, steps and "
        f"batches are chosen as for the lasso. The optimum F* is that of 10,000 steps of restarted FISTA, which leave "
        f"a proximal gradient of {violation:.1g}."
    )
    show_curves(section, problem, curves, lambda x: x["weights"], "Sparse logistic regression by seven methods.")
    signs = [np.sign(test @ curve.x["weights"] + curve.x["intercept"]) for curve in curves]
    accuracies = [float(np.mean(sign == y_test)) for sign in signs]
    low, high = f"{min(accuracies):.1%}", f"{max(accuracies):.1%}"
    section.note(
        "What one sees: much the same as for the lasso, on a function that is not quadratic. Gradient descent needs "
        "several times the passes of the accelerated methods; heavy ball starts slowly and ends well; the restart "
        "takes the ripples out of FISTA. SGD is first to a rough solution and far from sparse; SVRG goes on to the "
        f"last digit. On the held-out tumours the accuracy is {low if low == high else f'between {low} and {high}'} "
        "whatever the method: it is settled long before the last digits, which buy the right support."
    )
    weights = min(curves, key=lambda curve: curve.gaps[-1]).x["weights"]
    order = [i for i in np.argsort(np.abs(weights)) if weights[i] != 0]
    caption = f"The {len(order)} weights that are not zero, of {len(weights)}."
    with section.figure("weights", caption, height=0.8 + 0.2 * len(order)) as axes:
        colours = [plots.PALETTE[1] if weights[i] > 0 else plots.PALETTE[0] for i in order]
        axes.barh([data.feature_names[i] for i in order], weights[order], color=colours)
        axes.axvline(0, color=plots.INK, linewidth=0.8)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("weight (positive: towards malignant)")


def _losses(x, batch):
    features, labels = batch
    return jax.nn.softplus(-labels * (features @ x["weights"] + x["intercept"]))


def elastic_net(features: np.ndarray, labels: np.ndarray) -> tuple[FiniteSum, float]:
    """Return the problem, and by how much its reference optimum violates the optimality conditions."""
    extended = np.column_stack([features, np.ones(len(labels))])  # the intercept is a weight of the constant 1
    problem = FiniteSum(
        losses=_losses,
        data=(jnp.asarray(features), jnp.asarray(labels)),
        term=PerLeaf({"weights": ElasticNet(WEIGHT, WEIGHT), "intercept": Zero()}),
        x0={"weights": jnp.zeros(features.shape[1]), "intercept": jnp.zeros(())},
        smoothness=float(np.linalg.norm(extended, 2) ** 2 / (4 * len(labels))),
        max_smoothness=float((extended**2).sum(axis=1).max() / 4),
        optimum=np.nan,
    )
    solution = problem.solve()
    return replace(problem, optimum=float(problem.objective(solution))), problem.violation(solution)
