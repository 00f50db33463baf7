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


def _main_entry(name: str, facts: dict[str, Any]) -> CatalogueEntry:
    return CatalogueEntry(
        name=name,
        file=f"{name}.npz",
        sha256=facts["sha256"],
        shapes=shapes(facts["arrays"]),
        description=facts["description"],
        source=facts["source"],
        licence=facts["licence"],
        home=_home(facts),
        labels={
            array: {int(value): count for value, count in counts.items()}
            for array, counts in facts.get("labels", {}).items()
        },
    )


def _uci_entry(row: dict[str, str]) -> CatalogueEntry:
    name, n, d = row["name"], row["n"], row["d"]
    leak = " exp(y) is linear in the last two features: drop them." if name == "bike" else ""
    return CatalogueEntry(
        name=f"uci/{name}",
        file=f"uci_regression/{name}.npz",
        sha256=row["sha256"],
        shapes=shapes([f"X float32[{n}, {d}]", f"y float32[{n}]", f"test_mask bool[{n}, 10]"]),
        description=(
            f"Regression, {n} rows, {d} features, centred but not scaled; "
            f"column k of test_mask is the test part of fold k of ten.{leak}"
        ),
        source="GitHub treforevans/uci_datasets; from UCI, DELVE and L. Torgo's collection",
        licence="collection MIT; data of UCI CC BY 4.0",
        home=Home(
            [
                Raw(f"{_UCI_REGRESSION}/{name}/data.csv.gz", f"sha256:{row['data_sha256']}"),
                Raw(f"{_UCI_REGRESSION}/{name}/test_mask.csv.gz", f"sha256:{row['mask_sha256']}"),
            ],
            partial(_convert, "regression_with_masks"),
        ),
    )


def _read() -> dict[str, CatalogueEntry]:
    here = files("thalweg.data")
    facts = tomllib.loads(here.joinpath("catalogue.toml").read_text(encoding="utf-8"))
    rows = csv.DictReader(here.joinpath("uci.csv").read_text(encoding="utf-8").splitlines())
    entries = [_main_entry(name, fact) for name, fact in facts.items()] + [_uci_entry(row) for row in rows]
    return {entry.name: entry for entry in entries}


CATALOGUE = _read()
