"""The default of Thalweg's kernel estimators, beside the methods of Li and Póczos (2017): blocks of landmarks.

A landmark expansion has f = Σ k(·, xⱼ)Wⱼ and ‖f‖² = Σ ⟨Wⱼ, f(xⱼ)⟩. This is the only file of the papers that drives the
learner of :mod:`thalweg.machines` block by block: the curve needs a score after each part of a pass.
"""

from typing import Any

import jax
import numpy as np

from papers._dsg import KernelProblem, Score, TrainingClock, TrainingCurve
from thalweg.machines import Settings, Table, predict
from thalweg.machines.expansion import Expansion
from thalweg.machines.start import start_learner


def run_landmarks(problem: KernelProblem, *, seconds: float, curve: TrainingCurve) -> TrainingCurve:
    """Update blocks of landmarks one by one, pass after pass, with the problem's kernel and ridge."""
    settings = Settings(loss=problem.loss)
    rows = Table(problem.x, problem.y, np.ones(len(problem.x)))
    order = np.random.default_rng([curve.seed, 2]).permutation(len(rows))
    alpha = problem.ridge * len(rows)
    dimension, outputs = problem.x.shape[1], problem.y.shape[1]
    new_learner = lambda: start_learner(settings, problem.kernel, dimension, outputs, len(rows), curve.seed, np.float32)

    def score(expansion: Expansion) -> Score:
        coordinates = learner.machine.coordinates
        at_landmarks = predict(coordinates, expansion, np.asarray(expansion.blocks).reshape(-1, dimension))
        weights = np.asarray(expansion.scale * expansion.weights).reshape(at_landmarks.shape)
        square_norm = float(np.vdot(weights.astype(np.float64), at_landmarks))
        return problem.score(lambda x: predict(coordinates, expansion, x), square_norm)

    learner = new_learner()
    # To compile it, where a device computes.
    for _ in learner.learn(rows, order[: settings.block_size], alpha, len(rows)):
        pass
    for _ in learner.again(rows, order, alpha, len(rows)):
        jax.block_until_ready(learner.expansion)
        break
    learner = new_learner()
    clock = TrainingClock(problem, curve, seconds, score)
    clock.start()
    run_pass: Any = learner.learn
    while True:
        for _ in run_pass(rows, order, alpha, len(rows)):
            curve.steps += 1
            curve.blocks = int(learner.expansion.used)
            if clock(learner.expansion):
                return curve
        run_pass = learner.again
