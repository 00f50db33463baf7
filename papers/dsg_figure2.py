"""Figure 2 of "Utilize old coordinates: faster doubly stochastic gradients": eight million deformed digits."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from thalweg import data
from thalweg.experiments import _dsg, claims, plots
from thalweg.experiments._deformed_digits import DeformedDigits, drawn
from thalweg.experiments._dsg import Curve, Problem, Score
from thalweg.experiments._dsg_race import THREE, LargeSize, Runs
from thalweg.experiments.claims import Claim, at_full_size
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run

ROWS, _AT_ONCE = 8_100_000, 65_536
"""Images in all, and drawn at a time."""
LOSSES = ("logistic", "one-vs-one hinge")
_METHODS = tuple(_dsg.RULES)
_OURS, _SVRG = "landmarks", "SVRG, 500 features"
_COLOURS = dict(zip((*_METHODS, _OURS, _SVRG), plots.PALETTE, strict=False))
_PARTS = (0.25, 0.5, 1.0)
"""The parts of the time after which one must be ahead to be so consistently."""
_LEVEL, _SAME = 0.01, 0.001
"""Objectives that differ by less than this part, and test errors that differ by less, are level."""
_START = 100.0
"""Where the search for θ begins."""


class Found(Runs):
    """The runs by loss and method."""

    def score(self, loss: str, method: str, part: float = 1.0) -> Score:
        """After a part of the time."""
        return self.curves[loss, method].at(1.1 * part * self.size.seconds)

    def known(self, loss: str, *methods: str) -> bool:
        """Whether these were run, and tuned to the end."""
        return self.tuned(*((loss, name) for name in methods))


def _ahead(found: Found, loss: str, what: str, one: str, other: str, part: float = 1.0) -> bool:
    ours, theirs = (getattr(found.score(loss, name, part), what) for name in (one, other))
    return bool(ours < (1 - _LEVEL) * theirs if what == "objective" else ours < theirs - _SAME)


def _consistently(loss: str, what: str, checked: str = "CDSG") -> Callable[[Found], bool | None]:
    def test(found: Found) -> bool | None:
        if not found.known(loss, checked, "DSG", "UDSG"):
            return None
        return all(_ahead(found, loss, what, checked, other, part) for other in ("DSG", "UDSG") for part in _PARTS)

    return at_full_size(test)


def _ends(loss: str, what: str, *methods: str) -> Callable[[Found], str]:
    return lambda found: ", ".join(
        f"{name} {getattr(found.score(loss, name), what):.4g}" for name in methods if (loss, name) in found.curves
    )


def _falls_short(found: Found) -> bool | None:
    known = found.known("logistic", "UDSG", "DSG")
    return not _ahead(found, "logistic", "objective", "UDSG", "DSG") if known else None


def _unsatisfactory(found: Found) -> bool | None:
    return found.score("logistic", _SVRG).test >= 0.04 if found.known("logistic", _SVRG) else None


def _ours(found: Found) -> bool | None:
    if not found.known("logistic", _OURS, *_METHODS):
        return None
    return all(_ahead(found, "logistic", "test", _OURS, name) for name in _METHODS)


CLAIMS = (
    Claim(
        "CDSG consistently outperforms the other two in training objectives (logistic; here: after a quarter, a half "
        "and all of the time)",
        _consistently("logistic", "objective"),
        _ends("logistic", "objective", *_METHODS),
    ),
    *(
        Claim(
            f"CDSG consistently outperforms the other two in testing error ({loss}; here: by more than 0.1 % at the "
            "same times)",
            _consistently(loss, "test"),
            _ends(loss, "test", *_METHODS),
        )
        for loss in LOSSES
    ),
    Claim(
        "UDSG does not perform as well as in Figure 1 (here: it is not ahead of DSG)",
        at_full_size(_falls_short),
        _ends("logistic", "objective", "UDSG", "DSG"),
    ),
    Claim(
        "500 pre-generated features result in unsatisfactory results, 0.05 training and testing error (here: by SVRG, "
        "at least 0.04)",
        at_full_size(_unsatisfactory),
        _ends("logistic", "test", _SVRG),
    ),
    Claim(
        "(not the paper's) with steps of at most 10γ CDSG consistently has the least training objective",
        _consistently("logistic", "objective", _dsg.CAPPED),
        _ends("logistic", "objective", *_METHODS),
    ),
    Claim(
        "(not the paper's) our default, landmarks, has the least testing error (logistic)",
        at_full_size(_ours),
        _ends("logistic", "test", _OURS, *_METHODS),
    ),
)


@experiment(
    "dsg-figure2",
    title="Kernel machines on eight million digits: old coordinates or new ones",
    paper="Utilize old coordinates: faster doubly stochastic gradients for kernel methods, Figure 2",
    order=52,
)
def dsg_figure2(run: Run) -> None:
    """Follow training objective and test error of DSG, UDSG, CDSG and our default."""
    size = LargeSize(4000, 500, 64, 500, 0.15, 0.05, 1, 256, False) if run.quick else full()
    show(run, measure(size, run.seed))


def full(rows: int = ROWS, seconds: float = 0.0) -> LargeSize:
    """The paper's B and F; an hour for each run, or on an accelerator two minutes, in which DSG sees every row once."""
    seconds = seconds or (3600.0 if jax.default_backend() == "cpu" else 120.0)
    return LargeSize(rows, 20_000, 4096, 8192, seconds, seconds / 10, 6, 512, True)


def digits(size: LargeSize, seed: int) -> Problem:
    """Deformed copies of MNIST's training images on 100 principal components, and its test images."""
    mnist = data.load("mnist")
    # As many to deform as there are copies, at most, and to test on.
    images, new = (np.asarray(part[: size.rows], np.float32) / 255 for part in (mnist.X_train, mnist.X_test))
    labels_of = np.asarray(mnist.y_train[: size.rows], np.int32)
    source = DeformedDigits(images, labels_of, 100, jax.random.key(seed))
    x, labels = drawn(source.draw, size.rows, 100, _AT_ONCE, jax.random.key(seed + 1))
    made = _dsg.problem("mnist", x, labels, batch=size.batch, block=size.block, sample=size.sample, seed=seed)
    return replace(
        made, ridge=1e-6, new=source.project(jnp.asarray(new)), new_labels=np.asarray(mnist.y_test[: size.rows])
    )


def measure(size: LargeSize, seed: int, keep: Callable[[Found], Any] = lambda found: None) -> Found:
    """Run every method with both losses; ``keep`` is shown what there is after each."""
    problem = digits(size, seed)
    problems = {"logistic": problem, "one-vs-one hinge": _dsg.one_vs_one(problem)}
    found = Found(size, jax.devices()[0].device_kind)
    for of in problems.values():
        _dsg.prepare(of, _dsg.RULES.values(), precondition=False, capacity=size.capacity)

    def go(loss: str, method: str) -> None:
        start = found.thetas.get((loss, "DSG"), _START)
        found.add_published((loss, method), problems[loss], method, start, seed)
        keep(found)

    # What the paper's claims are about comes first: time may end this anywhere.
    for loss in LOSSES:
        for method in THREE:
            go(loss, method)
    found.curves["logistic", _OURS] = _dsg.landmarks(problem, seconds=size.seconds, curve=Curve(_OURS, seed=seed))
    keep(found)
    # SVRG on as many features as the paper could keep.
    few = partial(_dsg.svrg, problem, batch=256, frequencies=250)
    found.add(("logistic", _SVRG), 16.0, lambda step, s: few(step, seconds=s, curve=Curve(_SVRG, seed=seed)))
    keep(found)
    for loss in LOSSES:
        go(loss, _dsg.CAPPED)
    return found


def show(run: Run, found: Found) -> None:
    """Draw, tabulate and judge."""
    size = found.size
    run.note(
        _SETTING.format(
            size=size,
            device=found.device,
            short="" if size.rows == ROWS else _SHORT.format(rows=size.rows),
            edges=", ".join(map(" ".join, found.at_edge)) or "none",
        )
    )
    fig, panels = plots.figure(3)
    for axes, (loss, what) in zip(
        panels, (("logistic", "objective"), *((loss, "test") for loss in LOSSES)), strict=True
    ):
        for method, colour in _COLOURS.items():
            if curve := found.curves.get((loss, method)):
                axes.plot(curve.seconds[1:], curve.column(what)[1:], color=colour, label=method)
        axes.set(xscale="log", yscale="log", xlabel="seconds of training", title=f"{what}, {loss}")
    panels[0].legend(fontsize=7)
    run.figure("curves", fig, "Training objective with the logistic loss, and test error with both losses, by time.")
    run.table("ends", columns(found), "At the end of the time; θ or SVRG's step, steps taken, and blocks used.")
    numbers = {
        f"{loss}, {method}": {"seconds": c.seconds} | {name: c.column(name) for name in Score._fields}
        for (loss, method), c in found.curves.items()
    }
    run.numbers("curves", numbers)
    claims.show(run, CLAIMS, found)


def columns(found: Found) -> dict[str, list[Any]]:
    """How every run ended."""
    runs = [(loss, method, found.score(loss, method), curve) for (loss, method), curve in found.curves.items()]
    return {
        "loss": [loss for loss, _, _, _ in runs],
        "method": [method for _, method, _, _ in runs],
        "size": [f"{found.thetas[key]:g}" if (key := (loss, m)) in found.thetas else "–" for loss, m, _, _ in runs],
        "objective": [score.objective for _, _, score, _ in runs],
        "training error": [score.error for _, _, score, _ in runs],
        "test error": [score.test for _, _, score, _ in runs],
        "taken": [curve.steps for _, _, _, curve in runs],
        "blocks": [curve.blocks for _, _, _, curve in runs],
    }


_SHORT = " The paper has 8.1 million; {rows:,} is what there was time for."
_SETTING = (
    "{size.rows:,} digits, drawn: MNIST's training images, shifted, turned and elastically deformed, on 100 principal "
    "components; the test images are MNIST's own. MNIST-8M itself is not to be had here.{short} Gaussian kernel with "
    "the median bandwidth, batches of {size.batch:,}, blocks of {size.block:,} frequencies, λ = 1e-6, no "
    "preconditioner, steps θ/t, θ the best for each method after {size.trial:g} s of sizes a factor 4 apart; the best "
    "was the largest or smallest tried, and gives no verdict: {edges}. The objective is that on {size.sample:,} "
    "training rows. Every run has {size.seconds:g} s of training on one device ({device}); neither compiling nor "
    "evaluation counts. CDSG is as published, and once with steps along old blocks of at most ten times γ. Landmarks "
    "are what the estimators do by default, with this kernel and λ."
)
