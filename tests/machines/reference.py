"""DSG, UDSG and CDSG in plain NumPy, written from the papers' pseudo-code, corrected, not from the source.

Blocks are kept in lists, every shrinkage is applied at once to every weight, and nothing is compiled.
"""

import numpy as np
from scipy.special import expit, softmax


def gaussian(x, y, lengthscale, variance):
    squares = ((x[:, None, :] - y[None, :, :]) ** 2).sum(axis=2)
    return variance * np.exp(-squares / (2 * lengthscale**2))


class Frequencies:
    """[cos, sin]·√(variance/F), with the frequencies of block i given by a function of i."""

    def __init__(self, frequencies, lengthscale, variance):
        self.frequencies, self.lengthscale, self.variance = frequencies, lengthscale, variance
        self.gradient_scale = 1.0  # ‖φ(x)‖² = k(x, x)

    def new(self, i, x):
        return np.asarray(self.frequencies(i), dtype=np.float64)

    def __call__(self, x, block):
        phases = x @ block.T
        return np.sqrt(self.variance / len(block)) * np.hstack([np.cos(phases), np.sin(phases)])

    def metric(self, block):
        return np.eye(2 * len(block))

    def largest(self, block):
        return self.variance


class Landmarks:
    """k(·, x_j) at the first rows of the batch."""

    def __init__(self, size, lengthscale, variance):
        self.size, self.lengthscale, self.variance = size, lengthscale, variance
        self.gradient_scale = 1 / (size * variance)  # ‖φ(x)‖² ≤ size · k(x, x)²

    def new(self, i, x):
        return x[: self.size].copy()

    def __call__(self, x, block):
        return gaussian(x, block, self.lengthscale, self.variance)

    def metric(self, block):
        return gaussian(block, block, self.lengthscale, self.variance)

    def largest(self, block):
        return len(block) * self.variance**2


GRADIENTS = {
    "Squared": lambda f, y: f - y,
    "Logistic": lambda f, y: expit(f) - y,
    "Softmax": lambda f, y: softmax(f, axis=1) - y,
}
CURVATURES = {"Squared": 1.0, "Logistic": 0.25, "Softmax": 0.5}
GRADIENT_BOUNDS = {"Squared": None, "Logistic": 1.0, "Softmax": np.sqrt(2)}


class Machine:
    """f = Σ_i φ_i W_i, one step per call of :meth:`step`."""

    def __init__(self, coordinates, loss, ridge, precondition, outputs):
        self.coordinates, self.loss, self.ridge, self.precondition = coordinates, loss, ridge, precondition
        self.outputs = outputs
        self.blocks, self.weights, self.drifts = [], [], []
        self.count, self.sigma2, self.mean_square = 0, None, 0.0

    def predict(self, x):
        total = np.zeros((len(x), self.outputs))
        for block, weights in zip(self.blocks, self.weights, strict=True):
            total += self.coordinates(x, block) @ weights
        return total

    def step(self, x, y, w, rule, gamma, draw):
        """One step; ``draw(m)`` is a number below m. Returns the block's number and the step's size.

        With no γ the even rows propose a direction, and the odd ones choose the step by their losses' quadratic bound.
        """
        total = w.sum()
        g = GRADIENTS[self.loss](self.predict(x), y)
        mean = (w[:, None] * g).sum(axis=0) / total
        m = len(self.blocks)
        fresh = self.coordinates.new(m, x)
        k, s = rule(self, x, g, w, mean, fresh, gamma, draw)
        block = fresh if k == m else self.blocks[k]
        z = self.coordinates(x, block)
        proposers = np.arange(len(w)) % 2 == 0 if gamma is None else np.full(len(w), True)
        v = np.where(proposers, w, 0.0)
        direction = self.preconditioned(z, z.T @ (v[:, None] * g) / v.sum(), v, block)
        if gamma is None:
            validating, change = np.where(proposers, 0.0, w)[:, None], z @ direction
            s = (validating * g * change).sum() / (CURVATURES[self.loss] * (validating * change**2).sum())
            s = min(max(s, 0.0), 1.0)
        for j in range(m):
            self.weights[j] = (1 - s * self.ridge) * self.weights[j]
            self.drifts[j] = (1 - s * self.ridge) * self.drifts[j]
        if k == m:
            self.blocks.append(fresh)
            self.weights.append(np.zeros((z.shape[1], self.outputs)))
            self.drifts.append(np.zeros(self.outputs))
        self.weights[k] = self.weights[k] - s * direction
        self.drifts[k] = self.drifts[k] - s * mean
        self.count += 1
        return k, s

    def preconditioned(self, z, gradient, w, block):
        """(L·ZᵀZ/B + λR)⁻¹ times the gradient, R the features' inner products."""
        if not self.precondition:
            return self.coordinates.gradient_scale * gradient
        matrix = CURVATURES[self.loss] * z.T @ np.diag(w) @ z / w.sum() + self.ridge * self.coordinates.metric(block)
        return np.linalg.solve(matrix, gradient)

    def noise(self, x, g, w, fresh):
        """v = 2M²σ²/((κ + φ)²B) with κ + φ = 2; σ² once, from the first batch, M the running RMS if unbounded."""
        if self.sigma2 is None:
            x = x[w > 0]
            z = self.coordinates(x, fresh)
            exact = gaussian(x, x, self.coordinates.lengthscale, self.coordinates.variance)
            errors = z @ z.T / self.coordinates.largest(fresh) - exact / self.coordinates.variance
            self.sigma2 = errors.var(axis=1).mean()
        square = (w * (g**2).sum(axis=1)).sum() / w.sum()
        self.mean_square += (square - self.mean_square) / (self.count + 1)
        bound = GRADIENT_BOUNDS[self.loss]
        return 2 * (self.mean_square if bound is None else bound**2) * self.sigma2 / (4 * w.sum())


def new(machine, x, g, w, mean, fresh, gamma, draw):
    """DSG."""
    return len(machine.blocks), gamma


def uniform(G, U):
    """UDSG; steps are counted from 1."""

    def rule(machine, x, g, w, mean, fresh, gamma, draw):
        i = machine.count + 1
        return (len(machine.blocks) if (i - 1) % (G + U) < G else draw(len(machine.blocks))), gamma

    return rule


def capped(most):
    def rule(machine, x, g, w, mean, fresh, gamma, draw):
        m = len(machine.blocks)
        return (m if m < most else draw(m)), gamma

    return rule


def checked(stretch):
    """CDSG."""

    def rule(machine, x, g, w, mean, fresh, gamma, draw):
        v = machine.noise(x, g, w, fresh)
        sizes = [safe(beta, mean, v, gamma) for beta in machine.drifts]
        if sizes and max(sizes) > gamma:
            k = int(np.argmax(sizes))
            return k, min(sizes[k], stretch * gamma, 1 / machine.ridge if machine.ridge > 0 else np.inf)
        return len(machine.blocks), gamma

    return rule


def safe(beta, mean, v, gamma):
    A = mean @ mean + v
    delta = (beta @ mean) ** 2 - A * (beta @ beta - gamma**2 * (mean @ mean)) / 2
    return (beta @ mean + np.sqrt(delta)) / A if delta >= 0 else 0.0
