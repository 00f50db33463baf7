"""The marginal likelihood on a grid: what structured kernel interpolation costs once rows have been added up.

A = W K Wᵀ + D, with W the interpolation from the nodes of a grid and K circulant on a grid wide enough that its ends do
not meet: K = F diag(s) F* for the Fourier transform F. With G = WᵀD⁻¹W, a stencil that is added up once, and the
whitened matrix B = I + √K G √K, everything about A is in vectors of the length of the grid:

    log det A = log det D + log det B,    yᵀA⁻¹y = yᵀD⁻¹y − βᵀB⁻¹β,    β = √K WᵀD⁻¹y.

In the coordinates of F the derivative of both in log s_j is a diagonal: (1 − B⁻¹_jj)/2 − |a_j|²/2 with a = B⁻¹β, so
one product with the Jacobian of θ ↦ s(θ) gives all parameters. Where rows lie evenly B is nearly diagonal there, with
P = 1 + ĝ·s for the transform ĝ of the mean stencil: it preconditions the conjugate gradients, is a control variate for
B⁻¹_jj, and log det P is most of log det B. What is left is estimated with a few fixed probes, by Lanczos quadrature
from the very coefficients of the solves. Truncating them biases the value by no more than their residuals: those of the
targets enter squared.
"""

import math
from itertools import product
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from thalweg.compiling import quick_jit
from thalweg.kernels import Interpolation, Kernel, stencil_product
from thalweg.linalg import CGResult, traced_conjugate_gradients
from thalweg.processes.iterative import MAX_PRODUCTS

MAX_DIMENSIONS = 3
"""The most features that a grid can have: of four it would have 22 nodes in each."""


class GridMoments(eqx.Module):
    """Sums over rows: Wᵀ diag(ω) W, Wᵀ diag(ω) R and Rᵀ diag(ω) R for the columns R of targets and basis.

    The first of them is given by its stencil, or in three dimensions by its factors.
    """

    interpolation: Interpolation
    scales: Float[Array, " n"]
    stencil: Float[Array, " stencil *nodes"] | None
    occupied: Float[Array, ""]
    """How many nodes rows are near."""
    sums: Float[Array, " r *nodes"]
    squares: Float[Array, "r r"]
    targets: int = eqx.field(static=True)
    """How many of the columns are targets."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """Those of the grid, along each feature."""
        return self.sums.shape[1:]

    def gram(self, fields: Float[Array, " m *nodes"]) -> Float[Array, " m *nodes"]:
        """Multiply fields by Wᵀ diag(ω) W."""
        if self.stencil is not None:
            return stencil_product(self.stencil, fields)
        found = self.interpolation.mv(fields.reshape(len(fields), -1).T)
        return self.interpolation.rmv(self.scales[:, None] * found).T.reshape(fields.shape)

    def symbol(self) -> Float[Array, "*frequencies"]:
        """The transform of the mean stencil among occupied nodes; in three dimensions the mean density."""
        column = jnp.zeros(self.nodes, self.scales.dtype)
        if self.stencil is None:
            column = column.at[(0,) * column.ndim].set(jnp.sum(self.scales) / self.occupied)
        else:
            means = jnp.sum(self.stencil, axis=range(1, self.stencil.ndim)) / self.occupied
            offsets = np.array(list(product(range(-3, 4), repeat=column.ndim)))
            column = column.at[tuple(offsets.T)].add(means)
        return jnp.maximum(jnp.fft.rfftn(column).real, 0)


@quick_jit(lambda *_: False, tuned=False, static_argnums=3)
def moments(
    interpolation: Interpolation, columns: Float[Array, "n r"], scales: Float[Array, " n"], targets: int
) -> GridMoments:
    """Add rows up with weights ω."""
    weighted = scales[:, None] * columns
    sums = interpolation.rmv(weighted).T.reshape(-1, *interpolation.nodes)
    occupied = jnp.sum(interpolation.rmv(jnp.ones_like(scales)[:, None]) > 0.5).astype(scales.dtype)
    # In three dimensions a stencil has 343 entries a node, more than the rows have.
    stencil = interpolation.gram(scales) if len(interpolation.nodes) < MAX_DIMENSIONS else None
    gram = interpolation, scales, stencil, jnp.maximum(occupied, 1)
    return GridMoments(*gram, sums, weighted.T @ columns, targets)


@jax.jit
def scaled(given: GridMoments, factor: Float[Array, ""]) -> GridMoments:
    """Return those of ω times a number."""
    parts = lambda moments: jax.tree.leaves((moments.scales, moments.stencil, moments.sums, moments.squares))
    return eqx.tree_at(parts, given, replace_fn=lambda part: factor * part)


def spectrum(kernel: Kernel, spacing: Float[Array, " d"], nodes: tuple[int, ...]) -> Float[Array, "*frequencies"]:
    """Return half the eigenvalues of the circulant K, none of them negative."""
    lags = [np.arange(count // 2 + 1) for count in nodes]
    corner = jnp.asarray(np.stack(np.meshgrid(*lags, indexing="ij"), axis=-1).reshape(-1, len(nodes)), spacing.dtype)
    column = kernel(jnp.zeros((1, len(nodes)), spacing.dtype), corner * spacing[None])
    column = column.reshape([len(lag) for lag in lags])
    for axis, count in enumerate(nodes):
        index = np.arange(count)
        column = jnp.take(column, jnp.asarray(np.minimum(index, count - index)), axis=axis)
    return jnp.maximum(jnp.fft.rfftn(column).real, 0)


class FourierCoordinates(eqx.Module):
    """Whitened coordinates: √K and its adjoint between them and the grid, in which inner products are plain sums.

    Of one program no two transforms may run beside each other: each waits for threads of a pool that both have taken
    all of, on a CPU with JAX 0.11 for ever.
    """

    eigenvalues: Float[Array, "*frequencies"]
    nodes: tuple[int, ...] = eqx.field(static=True)

    @property
    def counts(self) -> Float[Array, "*frequencies"]:
        """How many real coordinates an entry stands for: the transform of real fields has half the frequencies."""
        last = np.arange(self.nodes[-1] // 2 + 1)
        twice = np.where((last == 0) | (2 * last == self.nodes[-1]), 1.0, 2.0)
        return jnp.broadcast_to(jnp.asarray(twice, self.eigenvalues.dtype), self.eigenvalues.shape)

    def white(self, fields: Float[Array, " m *nodes"]) -> Array:
        """FourierCoordinates of white noise on the grid."""
        scale = jnp.sqrt(self.counts / math.prod(self.nodes))
        return _times(scale, jnp.fft.rfftn(fields, axes=range(1, fields.ndim)))

    def rooted(self, white: Array) -> Array:
        """√K of what has such coordinates."""
        return _times(jnp.sqrt(self.eigenvalues), white)

    def analysis(self, fields: Float[Array, " m *nodes"]) -> Array:
        """√K fields, in coordinates."""
        return self.rooted(self.white(fields))

    def synthesis(self, coordinates: Array) -> Float[Array, " m *nodes"]:
        """√K coordinates, on the grid."""
        scale = jnp.sqrt(self.eigenvalues * math.prod(self.nodes) / self.counts)
        return jnp.fft.irfftn(_times(scale, coordinates), self.nodes, range(1, coordinates.ndim))


def _times(real: Array, block: Array) -> Array:
    return block * real.astype(block.dtype)[None]


def flat(block: Array) -> Array:
    """All but the first axis as one; there may be no rows."""
    return block.reshape(len(block), math.prod(block.shape[1:]))


def solve(
    given: GridMoments, coordinates: FourierCoordinates, preconditioner: Array, right: Array, tol: Float[Array, " m"]
) -> CGResult:
    """Solve B x = right, as P^(−½) B P^(−½) (P^½ x) = P^(−½) right; residuals are relative, in the norm of P⁻¹."""
    root = 1 / jnp.sqrt(preconditioner)
    as_block = lambda columns: columns.T.reshape(-1, *right.shape[1:])

    def apply(columns: Array) -> Array:
        scaled = _times(root, as_block(columns))
        return flat(_times(root, scaled + coordinates.analysis(given.gram(coordinates.synthesis(scaled))))).T

    begin = flat(_times(root, right)).T
    end = traced_conjugate_gradients(apply, begin, tol, MAX_PRODUCTS)
    norms = jnp.linalg.norm(begin, axis=0)
    residual = end.norms / jnp.where(norms > 0, norms, 1)
    return CGResult(_times(root, as_block(end.x)), end.iterations, residual, end.sizes.real, end.ratios.real)


@quick_jit(lambda *_: False, tuned=False)
def evaluate(
    kernel: Kernel,
    spacing: Float[Array, " d"],
    given: GridMoments,
    shares: GridMoments,
    probes: Float[Array, " m *nodes"],
    tolerance: Float[Array, " r+m"],
) -> tuple[Array, Array, CGResult, Kernel, Array]:
    """Return (y − Hβ̂)ᵀA⁻¹(y − Hβ̂), log det P, solves without their solutions, and slopes in log parameters.

    Those are of −log p(y), in the kernel and in the noise, without the part of log det D. Solves are of targets, basis
    and probes.
    ``given`` are the moments for ω = 1/D, ``shares`` those for ω = ρ/D, ρ the share of D that grows with the noise.
    """
    nodes, targets = given.nodes, given.targets
    eigenvalues, pull = jax.vjp(lambda kernel: spectrum(kernel, spacing, nodes), kernel)
    coordinates = FourierCoordinates(eigenvalues, nodes)
    preconditioner = 1 + given.symbol() * eigenvalues
    width = len(given.sums)
    both = coordinates.white(jnp.concatenate([given.sums, probes]))  # at once: see FourierCoordinates
    white = both[width:]
    right = jnp.concatenate([coordinates.rooted(both[:width]), _times(jnp.sqrt(preconditioner), white)])
    found = solve(given, coordinates, preconditioner, right, tolerance)
    solved, answers = found.x[:width], found.x[width:]
    coefficients, _ = mean_coefficients(given, right[:width], solved)
    combine = jnp.concatenate([jnp.eye(targets, dtype=spacing.dtype), -coefficients])
    a = (combine.T.astype(solved.dtype) @ flat(solved)).reshape(targets, *eigenvalues.shape)
    residual_squares = lambda m: jnp.sum(combine * (m.squares @ combine))
    cross = (jnp.conj(flat(right[:width])) @ flat(solved).T).real
    misfit = residual_squares(given) - jnp.sum(combine * ((cross + cross.T) / 2 @ combine))
    # B⁻¹_jj: that of P, and the difference by the probes.
    asked = _times(1 / jnp.sqrt(preconditioner), white)
    spread = jnp.mean((jnp.conj(asked) * (answers - asked)).real, axis=0)
    diagonal = coordinates.counts / preconditioner + spread
    slope = targets * (coordinates.counts - diagonal) - jnp.sum(jnp.abs(a) ** 2, axis=0)
    # The smallest eigenvalues are rounding of the Fourier transform.
    rounding = jnp.finfo(eigenvalues.dtype).eps * math.log2(2 * math.prod(nodes))
    real = eigenvalues > rounding * jnp.max(eigenvalues)
    kernel_gradient = pull(jnp.where(real, slope / jnp.where(real, eigenvalues, 1), 0) / 2)[0]
    # The noise: ∂G = −G_ρ, whose trace has that of G times the mean ρ as control variate.
    share = jnp.sum(shares.scales) / jnp.sum(given.scales)
    fields = coordinates.synthesis(jnp.concatenate([asked, a]))
    fields, means = fields[: len(asked)], fields[len(asked) :]
    rest = shares.gram(fields) - share * given.gram(fields)
    correction = jnp.sum((jnp.conj(answers) * coordinates.analysis(rest)).real) / len(answers)
    trace = share * jnp.sum(coordinates.counts - diagonal) + correction
    quadratic = residual_squares(shares) + jnp.sum(means * shares.gram(means))
    quadratic = quadratic - 2 * jnp.sum(flat(means) * (combine.T @ flat(shares.sums)))
    noise_gradient = -(targets * trace + quadratic) / 2
    known = jnp.sum(coordinates.counts * jnp.log(preconditioner))
    kernel_gradient = jax.tree.map(lambda slope, value: slope * value, kernel_gradient, kernel)
    return misfit, known, found._replace(x=jnp.zeros(0)), kernel_gradient, noise_gradient


def mean_coefficients(given: GridMoments, right: Array, solved: Array) -> tuple[Array, Array]:
    """Return β̂, the coefficients of the mean by generalised least squares, and HᵀA⁻¹H."""
    inverse = given.squares - (jnp.conj(flat(right)) @ flat(solved).T).real
    both = (inverse + inverse.T)[given.targets :] / 2
    gram = both[:, given.targets :]
    return _solve_small(gram, both[:, : given.targets]), gram


def _solve_small(gram: Array, right: Array) -> Array:
    return jnp.linalg.solve(gram, right) if len(gram) else right


@quick_jit(lambda *_: False, tuned=False)
def posterior_paths(
    kernel: Kernel,
    spacing: Array,
    given: GridMoments,
    interpolation: Any,
    basis: Float[Array, "n p"],
    errors: Float[Array, "n s"],
    white: Float[Array, " s *nodes"],
    tolerance: Float[Array, " r+s"],
) -> tuple[Any, ...]:
    """Means on the grid with their coefficients, samples of what differs, with theirs, and residuals."""
    nodes, targets = given.nodes, given.targets
    coordinates = FourierCoordinates(spectrum(kernel, spacing, nodes), nodes)
    preconditioner = 1 + given.symbol() * coordinates.eigenvalues
    scaled = given.scales[:, None] * errors
    drawn = interpolation.rmv(scaled).T.reshape(-1, *nodes)
    width, extra = len(given.sums), len(white)
    every = coordinates.white(jnp.concatenate([given.sums, white, drawn]))
    start = every[width : width + extra]
    right = jnp.concatenate([coordinates.rooted(every[:width]), start - coordinates.rooted(every[width + extra :])])
    found = solve(given, coordinates, preconditioner, right, tolerance)
    coefficients, basis_gram = mean_coefficients(given, right[:width], found.x[:width])
    fields = coordinates.synthesis(jnp.concatenate([found.x, start]))
    prior, fields = fields[width + extra :], flat(fields[: width + extra])
    values, levels, paths = fields[:targets], fields[targets:width], fields[width:]
    # β of each sample, by generalised least squares on its own values at the rows: A⁻¹H = D⁻¹(H − W z_H).
    seen = flat(given.sums[targets:]) @ flat(prior).T - levels @ flat(given.gram(prior)).T
    seen = seen + basis.T @ scaled - levels @ flat(drawn).T
    updated = _solve_small(basis_gram, seen)
    samples = paths + updated.T @ levels
    return values.T - levels.T @ coefficients, coefficients, samples.T, updated, found.residuals
