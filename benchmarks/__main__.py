"""Run every benchmark, each in a process of its own: ``python -m benchmarks`` (or ``make bench``).

Those that are named for a GPU are left out where there is none.
"""

import os
import pkgutil
import subprocess
import sys

import jax

import benchmarks

# This process only asks whether there is a GPU: its memory is for the benchmarks.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def main() -> int:
    found = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    names = [name for name in found if not name.startswith(("_", "defaults_"))]  # defaults runs its parts itself
    failed = []
    for name in sorted(names):
        if name.endswith("_gpu") and jax.default_backend() == "cpu":
            print(f"\n== {name}: left out, there is no GPU", flush=True)
            continue
        print(f"\n== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
