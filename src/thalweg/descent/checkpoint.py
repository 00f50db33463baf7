"""Checkpoints of a run: written between chunks, atomically, so that they survive ``kill -9``."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from thalweg import files
from thalweg.arguments import number
from thalweg.descent.engines import Progress
from thalweg.descent.iteration import Descent
from thalweg.descent.programs import fingerprint
from thalweg.descent.result import History, Status
from thalweg.descent.stopping import StoppingRule
from thalweg.errors import FileFormatError

__all__ = ["Checkpoint"]

KIND = "checkpoint"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run keeps its state, and how often it writes it.

    If the file exists when the run starts, the run goes on from it, and ends exactly where it would have ended
    without the interruption.

    Examples
    --------
    >>> Checkpoint("run.thalweg", every=60.0).every
    60.0
    """

    path: str | os.PathLike
    every: float = 30.0
    """Seconds between two writes; the last state is always written."""

    def __post_init__(self) -> None:
        number("every of Checkpoint", self.every, least=0, finite=False)
        folder = Path(self.path).resolve().parent
        if not folder.is_dir():
            raise FileNotFoundError(f"checkpoint: the folder {folder} does not exist")


def as_checkpoint(checkpoint: Any) -> Checkpoint | None:
    """Return a checkpoint for a path, or what was given."""
    if checkpoint is None or isinstance(checkpoint, Checkpoint):
        return checkpoint
    if isinstance(checkpoint, (str, os.PathLike)):
        return Checkpoint(checkpoint)
    raise TypeError(f"checkpoint must be a path or a Checkpoint, found {type(checkpoint).__name__}")


class CheckpointWriter:
    """Writes the progress of one run to its checkpoint, and finds it again."""

    def __init__(self, checkpoint: Checkpoint, descent: Descent, rule: StoppingRule, key: Any, start: PyTree) -> None:
        self.checkpoint = checkpoint
        self.parts = {name: _describe(getattr(descent, name)) for name in Descent.__dataclass_fields__}
        self.parts |= {"key": fingerprint(key), "x0": fingerprint(start)}
        self.rule = _describe(rule)
        self.last_written = time.monotonic()

    def find_or_write(self, fresh: Progress) -> Progress:
        """Return the progress on file; without one write ``fresh``, so that a path that cannot be written fails now."""
        path = Path(self.checkpoint.path)
        if not path.exists():
            self.write(fresh)
            return fresh
        plain, metadata = files.load(path, kind=KIND)
        self._refuse_another_run(metadata.get("parts") or {})
        same_rule = metadata.get("rule") == self.rule
        records = np.shape(plain["history"]["step"])
        columns = {name: jax.ShapeDtypeStruct(records, np.float64) for name in History.names}
        like = {"state": fresh.state, "history": columns}
        rule_leaves, rule_structure = jax.tree.flatten(fresh.rule_state)
        like["rule"] = rule_leaves if same_rule else plain["rule"]
        tree, _ = files.load(path, kind=KIND, like=like)
        return Progress(
            _on_device(tree["state"]),
            jax.tree.unflatten(rule_structure, _on_device(tree["rule"])) if same_rule else fresh.rule_state,
            History(tree["history"]),
            metadata["work"],
            metadata["seconds"],
            Status(metadata["status"]) if same_rule else Status.RUNNING,
        )

    def _refuse_another_run(self, stored: dict[str, str]) -> None:
        names = [name for name in self.parts if stored.get(name) != self.parts[name]]
        if names:
            was = ", ".join(f"{name}={stored.get(name)}" for name in names)
            now = ", ".join(f"{name}={self.parts[name]}" for name in names)
            raise FileFormatError(
                f"checkpoint {self.checkpoint.path} belongs to another run: it has {was}; this run has {now}. (The "
                f"digits are fingerprints of the values.) Choose another path, or delete the file."
            )

    def write(self, progress: Progress) -> None:
        """Write now."""
        # The leaves alone, so that a run under another rule can read past them.
        rule = jax.tree.leaves(progress.rule_state)
        tree = {"state": progress.state, "rule": rule, "history": dict(progress.history)}
        metadata = {
            "parts": self.parts,
            "rule": self.rule,
            "work": progress.work,
            "seconds": progress.seconds,
            "status": int(progress.status),
        }
        files.save(self.checkpoint.path, tree, metadata, kind=KIND)
        self.last_written = time.monotonic()

    def write_if_due(self, progress: Progress) -> None:
        """Write if the last time is long enough ago."""
        if time.monotonic() - self.last_written >= self.checkpoint.every:
            self.write(progress)


def _describe(part: eqx.Module) -> str:
    return f"{type(part).__name__} {fingerprint(part)}"


def _on_device(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array_like(leaf) else leaf, tree)
