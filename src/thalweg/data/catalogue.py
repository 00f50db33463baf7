"""The data sets we know: facts are in ``catalogue.toml`` and ``uci.csv``, beside this file."""

import csv
import tomllib
from functools import partial
from importlib import import_module
from importlib.resources import files
from typing import Any

from thalweg.data.registry import Arrays, CatalogueEntry, Home, Raw, shapes

# Pinned to a commit, so that its files cannot change.
_UCI_REGRESSION = (
    "https://raw.githubusercontent.com/treforevans/uci_datasets/f0737523712fe66a1640e4b980b927e8490b58eb/uci_datasets"
)


def _convert(converter: str, *arguments: Any, **options: Any) -> Arrays:
    """Call a converter by name; what converters need (SciPy, scikit-learn) is loaded for a download only."""
    return getattr(import_module("thalweg.data.converters"), converter)(*arguments, **options)


def _home(facts: dict[str, Any]) -> Home | None:
    if "convert" not in facts:
        return None
    convert = partial(_convert, facts["convert"], **facts.get("options", {}))
    raw = [Raw(file["url"], file.get("checksum")) for file in facts["files"]]
    return Home(raw, convert, facts.get("without", ()), facts.get("note", ""))


def _entry(name: str, file: str, facts: dict[str, Any]) -> CatalogueEntry:
    same = {key: facts[key] for key in ("sha256", "description", "source", "licence")}
    return CatalogueEntry(
        name=name, file=file, shapes=shapes(facts["arrays"]), home=_home(facts), labels=facts.get("labels", {}), **same
    )


def _uci_facts(row: dict[str, str]) -> dict[str, Any]:
    """Return what a row of ``uci.csv`` says in the form of ``catalogue.toml``."""
    name, n, d = row["name"], row["n"], row["d"]
    leak = " exp(y) is linear in the last two features: drop them." if name == "bike" else ""
    published = {"data": row["data_sha256"], "test_mask": row["mask_sha256"]}
    return {
        "sha256": row["sha256"],
        "arrays": [f"X float32[{n}, {d}]", f"y float32[{n}]", f"test_mask bool[{n}, 10]"],
        "description": f"Regression, {n} rows, {d} features, centred but not scaled; "
        f"column k of test_mask is the test part of fold k of ten.{leak}",
        "source": "GitHub treforevans/uci_datasets; from UCI, DELVE and L. Torgo's collection",
        "licence": "collection MIT; data of UCI CC BY 4.0",
        "convert": "regression_with_masks",
        "files": [
            {"url": f"{_UCI_REGRESSION}/{name}/{part}.csv.gz", "checksum": f"sha256:{checksum}"}
            for part, checksum in published.items()
        ],
    }


def _read() -> dict[str, CatalogueEntry]:
    here = files("thalweg.data")
    facts = tomllib.loads(here.joinpath("catalogue.toml").read_text(encoding="utf-8"))
    rows = csv.DictReader(here.joinpath("uci.csv").read_text(encoding="utf-8").splitlines())
    uci = {row["name"]: _uci_facts(row) for row in rows}
    entries = {name: _entry(name, f"{name}.npz", of_name) for name, of_name in facts.items()}
    return entries | {f"uci/{name}": _entry(f"uci/{name}", f"uci_regression/{name}.npz", uci[name]) for name in uci}


CATALOGUE = _read()
