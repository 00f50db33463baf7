"""The house as it is built: who may know whom, no circles, small files, and a face that loads nothing it need not."""

import ast
import importlib
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "thalweg"
FILES = sorted(SOURCE.rglob("*.py"))
SMALL_ROOMS = {
    "arguments",
    "codec",
    "compiling",
    "errors",
    "extras",
    "files",
    "outcomes",
    "padding",
    "threads",
    "trees",
    "data",
}
BASEMENT = {"linalg", "rows", "runs", "selection"}
# Each room and the rooms it may know, beside itself, the small rooms, which everybody may enter, and the basement, on
# which every system stands.
MAY_KNOW = {
    "linalg": set(),
    "runs": set(),
    "rows": {"linalg"},
    "selection": {"runs"},
    "oracles": set(),
    "descent": {"oracles.base"},
    "kernels": set(),
    "spectral": {"oracles.base"},
    "gaussian": {"descent", "oracles"},
    "machines": {"descent", "kernels"},
    "completion": {"descent", "oracles", "spectral"},
    "processes": {"descent", "gaussian", "kernels", "oracles", "spectral"},
    "topics": {"gaussian"},
    "models": {"completion", "descent", "gaussian", "kernels", "machines", "processes", "spectral", "topics"},
    "demo": {
        "completion",
        "descent",
        "gaussian",
        "kernels",
        "machines",
        "models",
        "oracles",
        "processes",
        "spectral",
        "topics",
    },
    "cli": {"demo"},
    "__main__": {"cli"},
}


def name_of(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


def statements(node):
    """Those in a node, however deep; expressions, most of a tree, hold none."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


def imported(path):
    """The modules that a file imports, with the names it takes from each."""
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner, "") if inner in MODULES else (node.module, alias.name)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def room(module):
    return module.split(".")[1] if "." in module else ""


@pytest.fixture(scope="module")
def all_imports():
    """Who imports what, and which name of it."""
    return [(module, other, name) for module, path in MODULES.items() for other, name in imported(path)]


@pytest.fixture(scope="module")
def imports(all_imports):
    """Those of Thalweg's own modules."""
    return [entry for entry in all_imports if entry[1].split(".")[0] == "thalweg"]


def test_a_room_knows_only_what_is_below_it(imports):
    for module, other, _ in imports:
        mine, theirs = room(module), room(other)
        if mine in ("", theirs) or theirs in {"", mine} | SMALL_ROOMS:
            continue
        below = MAY_KNOW.get(mine, set()) | (set() if mine in BASEMENT else BASEMENT)
        assert theirs in below or other.removeprefix("thalweg.") in below, f"{module} knows {other}"


def test_no_private_name_crosses_packages(imports):
    for module, other, name in imports:
        private = [part for part in [*other.split("."), name] if part.startswith("_") and not part.startswith("__")]
        assert not private or room(other) == room(module), f"{module} takes {private} from {other}"


def test_the_demo_uses_what_rooms_export(imports):
    for module, other, _ in imports:
        if room(module) == "demo":
            assert room(other) in {"", "demo"} | SMALL_ROOMS or other.count(".") == 1, f"{module} reaches into {other}"


def test_nothing_knows_the_papers(all_imports):
    assert not [module for module, other, _ in all_imports if other.split(".")[0] == "papers"]


def test_imports_run_in_no_circle(imports):
    graph: dict[str, set[str]] = {}
    for module, other, _ in imports:
        graph.setdefault(module, set()).add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_a_file_fits_in_a_readers_head():
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}


def loaded_by(statement):
    program = f"import sys; {statement}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_the_face_loads_nothing_before_it_is_used():
    others = {"sklearn", "matplotlib", "rich", "optax", "pooch", "pandas", "lineax"}
    assert not loaded_by("import thalweg, thalweg.cli") & {"jax", "numpy", "scipy", *others}
    assert not loaded_by("from thalweg import minimize, L1, Exact, logdet") & {"scipy.stats", *others}


def test_one_name_is_one_thing():
    """What two rooms offer by the same name is the same; data sets and models are both loaded."""
    owners: dict[str, set[str]] = {}
    for place in (*MAY_KNOW, "data"):
        offered = importlib.import_module(f"thalweg.{place}")
        for name in getattr(offered, "__all__", ()):
            owners.setdefault(name, set()).add(getattr(getattr(offered, name), "__module__", place))
    assert {name: found for name, found in owners.items() if len(found) > 1 and name != "load"} == {}
