"""Bare calls beside the peers, all tables: spectral sums, Gaussian processes, kernel machines.

Each is a benchmark of its own (``defaults_spectral``, ``defaults_gp``, ``defaults_machines``), with figures of its own;
this runs the three, each in a process of its own, and prints whether their claims hold.
"""

import json
import subprocess
import sys

from benchmarks._common import RESULTS, report

PARTS = ("defaults_spectral", "defaults_gp", "defaults_machines")


def main() -> None:
    claims = {}
    for name in PARTS:
        print(f"\n== {name}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
        claims[name] = json.loads((RESULTS / f"{name}.json").read_text())
    held = {name: float(claim["holds"]) for name, claim in claims.items()}
    report("bare calls are as quick and as good as those of the peers", held, all(held.values()), parts=claims)


if __name__ == "__main__":
    main()
