"""Figure 1 of "Stochastic Chebyshev gradient descent": the variance of degree laws, with ours as a fourth curve."""

import jax.numpy as jnp
import numpy as np

from thalweg.experiments import plots
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run
from thalweg.spectral.chebyshev import decay, series
from thalweg.spectral.degrees import negative_binomial, optimal, poisson, theorem3, variance

_PANELS = {
    "log": ("(a) log x on [0.05, 0.95]", jnp.log, 0.05, 0.95),
    "sqrt": ("(b) √x on [0.05, 0.95]", jnp.sqrt, 0.05, 0.95),
    "exp": ("(c) exp x on [−1, 1]", jnp.exp, -1.0, 1.0),
}
_CURVES = {
    "negative binomial": lambda b, mean, rho: negative_binomial(b, mean),
    "Poisson": lambda b, mean, rho: poisson(b, mean),
    "Theorem 3": lambda b, mean, rho: theorem3(b, mean, rho),
    "coefficient-optimal": lambda b, mean, rho: optimal(b, mean),
}


@experiment(
    "spectral-figure1",
    title="Variance of the law of degrees",
    paper="Stochastic Chebyshev gradient descent, Figure 1",
    order=30,
)
def spectral_figure1(run: Run) -> None:
    """Draw panels (a) to (d), and tabulate the ratio of Theorem 3's variance to ours at large κ."""
    means = np.arange(5, 101, 5.0)
    numbers: dict = {"N": means}
    for name, (title, f, lower, upper) in _PANELS.items():
        b = series(f, lower, upper)
        rho = _rho(name, lower, upper, b)
        curves = {label: [variance(b, law(b, mean, rho)) for mean in means] for label, law in _CURVES.items()}
        numbers[name] = curves
        fig, axes = plots.figure()
        for label, values in curves.items():
            drawn = np.asarray(values)
            axes.plot(means[drawn > 0], drawn[drawn > 0], label=label)
        axes.set(yscale="log", xlabel="mean degree N", ylabel="Chebyshev-weighted variance")
        axes.legend()
        run.figure(f"variance-{name}", fig, f"{title}. Where a curve ends, the series is exact to rounding.")
    _coefficients(run, numbers)
    _ratios(run)
    run.note(
        "Variances are sums over the coefficients above rounding (Lemma 2). For log and √x the Poisson law has "
        "infinite variance: its sum over the whole series diverges, and what is drawn is the part up to the last "
        "coefficient above rounding. The paper does not say with which shape its negative binomial is drawn; here it "
        "is 5. On these intervals (κ = 19) Theorem 3's law is close to optimal, which is why the figure shows little "
        "between them; the table shows what happens as κ grows."
    )
    run.numbers("curves", numbers)


def _rho(name: str, lower: float, upper: float, b: np.ndarray) -> float:
    if name == "exp":
        return decay(b)[0]
    root = np.sqrt(upper / lower)
    return float((root + 1) / (root - 1))


def _coefficients(run: Run, numbers: dict) -> None:
    """Panel (d): b_j² of the logarithm against cρ^(−2j)."""
    b = series(jnp.log, 0.05, 0.95)
    rho = _rho("log", 0.05, 0.95, b)
    degrees = np.arange(1, b.size)
    bound = b[1] ** 2 * rho ** (-2.0 * (degrees - 1))
    fig, axes = plots.figure()
    axes.plot(degrees, b[1:] ** 2, label="$b_j^2$")
    axes.plot(degrees, bound, label=r"$c\,\rho^{-2j}$")
    axes.set(yscale="log", xlabel="j")
    axes.legend()
    run.figure("coefficients", fig, "(d) Squared coefficients of log x on [0.05, 0.95] and the geometric bound.")
    numbers["coefficients"] = {"b": b, "rho": rho}


def _ratios(run: Run) -> None:
    columns: dict[str, list] = {"κ": [], "N": [], "Theorem 3": [], "coefficient-optimal": [], "ratio": []}
    for kappa in (1e2, 1e3, 1e4, 1e5):
        b = series(jnp.log, 1.0, kappa)
        rho = _rho("log", 1.0, kappa, b)
        for mean in (15.0, 30.0, 60.0, 120.0):
            if mean < b.size - 1:
                theirs, ours = variance(b, theorem3(b, mean, rho)), variance(b, optimal(b, mean))
                row = (f"{kappa:.0e}", int(mean), theirs, ours, theirs / ours)
                for header, value in zip(columns, row, strict=True):
                    columns[header].append(value)
    run.table(
        "ratios", columns, "log x: variance of Theorem 3's law and of ours at the same mean degree N, by κ = b/a."
    )
