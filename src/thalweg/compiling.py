"""Fast compilation, for programs that run for less time than XLA takes to optimise them."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache, wraps
from threading import Lock, Thread
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


@cache
def quick_options(loops: bool = False, fused: bool = False) -> Mapping[str, Any]:
    """Options for ``jax.jit`` with which a CPU program compiles several times faster than by default.

    LAPACK runs as fast as before; loops over elements become a few times slower. With ``loops`` they become a tenth
    slower (a quarter where blocks are larger than the cache), and compiling takes half of its time; with ``fused`` they
    stay as fast, and compiling takes two thirds. Empty on other devices; options that XLA does not know are left out.

    Examples
    --------
    >>> import jax
    >>> float(jax.jit(lambda x: x + 1, compiler_options=dict(quick_options()))(1.0))
    2.0
    """
    options = {
        "xla_backend_optimization_level": int(loops or fused),
        "xla_cpu_parallel_codegen_split_count": 1,
        "xla_cpu_use_fusion_emitters": fused,
    }
    return known_options(options) if jax.default_backend() == "cpu" else {}


@cache
def untuned_options() -> Mapping[str, Any]:
    """Options with which a GPU does not tune its matrix products while compiling; empty on other devices.

    Where cuSOLVER does the work, tuning takes half of the compilation and gains nothing. Products are then left to
    cuBLAS: XLA's own, untuned, were 5 to 13 times slower on an H200.

    Examples
    --------
    >>> import jax
    >>> float(jax.jit(lambda x: x + 1, compiler_options=dict(untuned_options()))(1.0))
    2.0
    """
    options = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
    return known_options(options) if jax.default_backend() == "gpu" else {}


def known_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return those of some options that this version of XLA knows."""
    try:
        jax.jit(lambda: 0).lower().compile(dict(options))
        return options
    except jax.errors.JaxRuntimeError:
        one_by_one = [known_options({name: value}) for name, value in options.items()] if len(options) > 1 else []
        return {name: value for known in one_by_one for name, value in known.items()}


def _compiler_options(hurry: bool, tuned: bool, loops: bool = False) -> dict[str, Any] | None:
    return {**(quick_options(loops) if hurry else {}), **({} if tuned else untuned_options())} or None


def quick_jit(
    quick: Callable[..., bool], tuned: bool = True, loops: bool | Callable[..., bool] = False, **named: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: ``jax.jit``, with :func:`quick_options` for those arguments for which ``quick(*arguments)`` holds.

    JAX allows no options within another ``jit``, so the function is to be called from the host. If not ``tuned``,
    :func:`untuned_options` are given too; ``loops`` is that of the options, or a function of the arguments, and
    whatever is ``named`` is passed on to ``jax.jit``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> total = quick_jit(lambda x: len(x) < 1000)(jnp.sum)
    >>> total(jnp.ones(3))
    Array(3., dtype=float...)
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        # Made when first called: the options depend on the device, and an import should start none.
        @cache
        def compiled(hurry: bool, loops: bool) -> Callable[..., Any]:
            return jax.jit(function, compiler_options=_compiler_options(hurry, tuned, loops), **named)

        def call(*arguments: Any) -> Any:
            has_loops = loops(*arguments) if callable(loops) else loops
            return compiled(bool(quick(*arguments)), bool(has_loops))(*arguments)

        return wraps(function)(call)

    return decorate


@cache
def host_jit(function: Callable[..., Any], *, loops: bool = False, fused: bool = False) -> Callable[..., Any]:
    """``equinox.filter_jit`` with :func:`quick_options` and :func:`untuned_options`, for calls from the host.

    Of a kernel matrix of side 36,000 an H200 then takes 23 s for its first log-determinant instead of 107.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> host_jit(jnp.sum)(jnp.ones(3))
    Array(3., dtype=float...)
    """
    options: dict[str, Any] = {"compiler_options": {**quick_options(loops, fused), **untuned_options()}}
    return eqx.filter_jit(function, **options)


class Prepared:
    """A compiled function whose programs can be prepared in threads before they are called.

    ``quick`` and ``tuned`` are those of :func:`quick_jit`. Arguments are passed by position; each combination of their
    shapes has a program.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> total = Prepared(jnp.sum, lambda x: True)
    >>> total.prepare(jnp.ones(3))
    >>> total(jnp.ones(3))
    Array(3., dtype=float...)
    """

    def __init__(self, function: Callable[..., Any], quick: Callable[..., bool], tuned: bool = True) -> None:
        self.__wrapped__, self._quick, self._tuned = function, quick, tuned
        self._made: dict[Any, Future] = {}
        self._lock = Lock()

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns; compile its program first, or wait for it."""
        return self._program(arguments, lambda make: make()).result()(*arguments)

    def prepare(self, *arguments: Any) -> None:
        """Start to compile the program for arguments of these shapes, in a thread."""
        self._program(arguments, lambda make: Thread(target=make).start())

    def _program(self, arguments: tuple, run: Callable[[Callable[[], None]], None]) -> Future:
        leaves, structure = jax.tree.flatten(arguments)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        settings = jax.config.jax_enable_x64, jax.config.jax_default_device  # type: ignore[attr-defined]
        key = structure, shapes, settings
        with self._lock:
            known = key in self._made
            future = self._made.setdefault(key, Future())
        if not known:
            like = [jax.ShapeDtypeStruct(shape, jnp.result_type(kind)) for shape, kind in shapes]
            like = jax.tree.unflatten(structure, like)
            run(lambda: self._make(key, like, *settings))
        return future

    def _make(self, key: Any, like: tuple, wide: bool, device: Any) -> None:
        try:
            with jax.enable_x64(wide), jax.default_device(device):  # a thread has settings of its own
                options = _compiler_options(self._quick(*like), self._tuned)
                made = jax.jit(self.__wrapped__, compiler_options=options).lower(*like).compile()
            self._made[key].set_result(made)
        except BaseException as error:
            self._made.pop(key).set_exception(error)
