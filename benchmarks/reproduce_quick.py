"""All figures and tables of the papers at quick size, on two cores: ``python -m papers all --quick`` in 20 minutes.

It is a fresh process that compiles everything, pinned to the first two cores that this one may use.

``python -m benchmarks.reproduce_quick``; needs the data sets (THALWEG_DATA).
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks._common import report

MOST = 1200.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("reproductions"))
    given = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    plain = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    began = time.perf_counter()
    command = [sys.executable, "-m", "papers", "all", "--quick", "--output", str(given.output)]
    subprocess.run(command, env={**plain, "JAX_PLATFORMS": "cpu"}, check=True)
    seconds = time.perf_counter() - began
    claims = list(csv.DictReader((given.output / "claims.csv").open()))
    sections = {page.parent.name: json.loads(page.read_text())["seconds"] for page in given.output.glob("*/index.json")}
    figure = {
        "seconds": seconds,
        "one report": (given.output / "index.html").exists(),
        "claims in one table": len(claims),
        "verdicts": dict(Counter(row["verdict"] for row in claims)),
    }
    holds = seconds <= MOST and figure["one report"] and bool(claims)
    report("python -m papers all --quick ends on two cores within 20 minutes", figure, holds, sections=sections)


if __name__ == "__main__":
    main()
