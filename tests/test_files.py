import json
import os
import pickle
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from thalweg import files
from thalweg.errors import FileFormatError


class State(NamedTuple):
    x: object
    k: object


class Layer(eqx.Module):
    weights: jax.Array
    label: str = eqx.field(static=True)


@files.storable
class Scale(eqx.Module):
    """A module whose constructor refuses what is not positive."""

    weight: jax.Array
    label: str = eqx.field(static=True, default="plain")

    def __check_init__(self):
        if not np.all(np.asarray(self.weight) > 0):
            raise ValueError("weight must be positive")


@files.storable
class Span(NamedTuple):
    low: float
    high: float

    def check_stored(self):
        if self.low > self.high:
            raise ValueError("low is above high")


def same(a, b):
    """Equality of trees, to the bit: dtypes, NaNs and signs of zero included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b or (a != a and b != b)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.thalweg"


dtypes = st.one_of(
    stn.boolean_dtypes(),
    stn.integer_dtypes(endianness="<"),
    stn.unsigned_integer_dtypes(endianness="<"),
    stn.floating_dtypes(endianness="<"),
    stn.complex_number_dtypes(endianness="<"),
    stn.unicode_string_dtypes(endianness="<"),
    stn.byte_string_dtypes(),
    stn.datetime64_dtypes(endianness="<"),
    st.sampled_from([np.dtype(d) for d in (jnp.bfloat16, jnp.float8_e4m3fn, jnp.int4)]),
)
shapes = stn.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


@st.composite
def raw_arrays(draw):
    """Arrays of any bit pattern, so that no element strategy is needed for exotic dtypes."""
    dtype, shape = draw(dtypes), draw(shapes)
    if dtype.kind in "US" or dtype.name == "int4":  # not every bit pattern is a value
        return np.full(shape, draw(st.sampled_from(["", "a", "é"])) if dtype.kind == "U" else 1, dtype)
    data = draw(st.binary(min_size=(n := int(np.prod(shape)) * dtype.itemsize), max_size=n))
    array = np.ndarray(shape, dtype, data).copy()
    return np.asarray(array.view(np.uint8) % 2 == 1) if dtype.kind == "b" else array


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | raw_arrays()
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
        | st.dictionaries(st.integers(), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees)
def test_any_tree_comes_back_to_the_bit(path, tree):
    files.save(path, tree, {"n": 1}, kind="test")
    loaded, metadata = files.load(path, kind="test")
    assert same(loaded, tree)
    assert metadata == {"n": 1}
    if tree is not None:
        assert same(files.load(path, like=tree)[0], tree)


def test_jax_arrays_come_back_as_numpy_arrays_whatever_the_x64_setting(path):
    tree = {"x": jnp.arange(3.0), "b": jnp.ones((), jnp.bfloat16), "e": jnp.zeros((0, 2), jnp.float32)}
    files.save(path, tree, kind="test")
    with jax.enable_x64(False):
        loaded, _ = files.load(path)
    assert {k: (type(v), v.dtype.name, v.shape) for k, v in loaded.items()} == {
        "x": (np.ndarray, "float64", (3,)),
        "b": (np.ndarray, "bfloat16", ()),
        "e": (np.ndarray, "float32", (0, 2)),
    }
    loaded["x"][0] = 1  # writable, and not a view of anything else


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_random_keys_come_back_as_keys(path, impl, shape):
    key = jax.random.key(3, impl=impl)
    key = jax.random.split(key, shape) if shape else key
    files.save(path, {"key": key}, kind="test")
    for like in (None, {"key": key}):
        back = files.load(path, like=like)[0]["key"]
        assert back.dtype == key.dtype
        np.testing.assert_array_equal(jax.random.key_data(back), jax.random.key_data(key))


def test_big_endian_and_strided_arrays_keep_their_values(path):
    tree = [np.arange(6, dtype=">f8").reshape(2, 3).T, np.arange(9)[::-2]]
    files.save(path, tree, kind="test")
    for a, b in zip(files.load(path)[0], tree, strict=True):
        np.testing.assert_array_equal(a, b)


def test_like_restores_named_tuples_and_modules(path):
    state = State(x=(Layer(jnp.ones(2), "a"), None), k=3)
    files.save(path, state, kind="test")
    assert same(files.load(path)[0], {"x": ({"weights": np.ones(2)}, None), "k": 3})
    back, _ = files.load(path, like=State((Layer(jnp.zeros(2), "b"), None), 0))
    assert isinstance(back, State)
    assert isinstance(back.x[0], Layer)
    assert back.x[0].label == "b"  # what is static belongs to the code, not to the file
    assert isinstance(back.x[0].weights, np.ndarray)
    shapes = jax.eval_shape(lambda: State((Layer(jnp.zeros(2), "b"), None), 0))._replace(k=0)
    assert eqx.tree_equal(files.load(path, like=shapes)[0], back)


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (State({"w": np.ones(4, np.float32)}, 3), r"x\.w: float64\[5\] in the file, float32\[4\] expected"),
        (State({"w": np.ones(5), "v": 1}, 3), r"x\.v: expected, and not in the file"),
        (State([np.ones(5)], 3), r"x\.0: expected, and not in the file"),
        (State({"w": np.ones(5)}, 3.0), r"k: int in the file, float expected"),
        (State({"w": {}}, 3), r"x\.w: in the file, and not expected"),
        (State(np.ones(5), 3), r"x: expected, and not in the file"),
        (np.ones(5), r"tree: expected, and not in the file"),
    ],
)
def test_like_of_another_structure_is_refused_by_name(path, like, message):
    files.save(path, State({"w": np.ones(5)}, 3), kind="test")
    with pytest.raises(FileFormatError, match=message):
        files.load(path, like=like)


def test_objects_of_storable_classes_come_back_as_such(path):
    tree = {"scale": Scale(jnp.ones(2), "mine"), "spans": [Span(0.0, 1.0)], "kind": Span}
    files.save(path, tree, kind="test")
    back, _ = files.load(path)
    assert back["spans"] == [Span(0.0, 1.0)]
    assert back["kind"] is Span
    assert isinstance(back["scale"], Scale)
    assert back["scale"].label == "mine"
    np.testing.assert_array_equal(back["scale"].weight, np.ones(2))


def test_two_storable_classes_cannot_share_a_name():
    with pytest.raises(ValueError, match="two storable classes are called Span"):

        @files.storable
        class Span(NamedTuple):
            width: float


@pytest.mark.parametrize(
    ("tree", "error", "message"),
    [
        ({"f": print}, TypeError, r"\['f'\]: cannot store builtin_function_or_method"),
        ([np.array([object()])], TypeError, r"\[0\]: cannot store arrays of dtype object"),
        ([np.zeros(1, "f8,i4")], TypeError, r"\[0\]: cannot store arrays of dtype"),
        ({(1, 2): 0}, TypeError, r"tree: keys must be all str or all int, found \(1, 2\)"),
        ({"a": {1: 0, "b": 0}}, TypeError, r"\['a'\]: keys must be all str or all int, found \[1, 'b'\]"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(path, tree, error, message):
    with pytest.raises(error, match=message):
        files.save(path, tree, kind="test")
    assert list(path.parent.iterdir()) == []


def test_a_tree_that_contains_itself_is_refused(path):
    tree = []
    tree.append(tree)
    with pytest.raises(ValueError, match="contains itself"):
        files.save(path, tree, kind="test")


def test_metadata_must_be_a_dict_that_json_can_express(path):
    with pytest.raises(TypeError, match="metadata must be a dict, found list"):
        files.save(path, 1, [1], kind="test")
    with pytest.raises(TypeError, match="JSON"):
        files.save(path, 1, {"a": object()}, kind="test")


def test_another_kind_is_refused(path):
    files.save(path, 1, kind="estimator")
    with pytest.raises(FileFormatError, match=r"run\.thalweg: holds a 'estimator', expected a 'checkpoint'"):
        files.load(path, kind="checkpoint")


def test_missing_file_and_missing_folder(path):
    with pytest.raises(FileNotFoundError):
        files.load(path)
    with pytest.raises(FileNotFoundError, match="deeper does not exist"):
        files.save(path / "deeper" / "a", 1, kind="test")


def plain(metadata, arrays=None):
    return safetensors.numpy.save(arrays or {}, metadata)


def forged(content, arrays=None, **header):
    """A file with a correct checksum and whatever content."""
    text = content if isinstance(content, str) else json.dumps(content)
    digest = files._digest(text, arrays or {})
    return plain({"format": "thalweg", "version": "2", "content": text, "sha256": digest} | header, arrays)


def tree_of(node, arrays=None):
    return forged({"kind": "test", "metadata": {}, "tree": node}, arrays)


def made(name, **parts):
    return tree_of({"object": name, "from": [list(item) for item in parts.items()], "jax": []})


def array(name="a", dtype="float64", shape=(2,)):
    return {"array": name, "dtype": dtype, "shape": list(shape)}


two = {"a": np.ones(2)}
hostile = {
    "empty": (b"", "is empty"),
    "text": (b"hello, this is a text file", "no safetensors file"),
    "pickle": (pickle.dumps({"a": 1}), "no safetensors file"),
    "huge header": ((1 << 62).to_bytes(8, "little") + b"{}", "no safetensors file"),
    "deep header": ((90_000).to_bytes(8, "little") + b'{"a":' * 18_000, "no safetensors file"),
    "foreign": (plain({"format": "pt"}, two), "not one that Thalweg wrote"),
    "no metadata": (plain(None, two), "not one that Thalweg wrote"),
    "newer": (forged({}, version="3"), "version 3 of the format.*upgrade thalweg"),
    "no version": (forged({}, version="new"), "names no version"),
    "no checksum": (forged({}, sha256=""), "does not match its checksum"),
    "not json": (forged("{"), "description is not JSON"),
    "long number": (forged("1" * 5000), "description is not JSON"),
    "list": (forged([]), "lacks kind, metadata or tree"),
    "kind": (forged({"kind": 1, "metadata": {}, "tree": 1}), "kind: int found, str expected"),
    "metadata": (forged({"kind": "", "metadata": [], "tree": 1}), "metadata: list found, dict expected"),
    "deep": (forged('{"kind":"","metadata":{},"tree":' + "[" * 200_000), "not JSON that can be read"),
    "deep tree": (
        forged('{"kind":"","metadata":{},"tree":' + '{"list":[' * 200 + "]}" * 200 + "}"),
        "nested too deeply",
    ),
    "bare list": (tree_of([1]), "neither a leaf nor a container"),
    "unknown node": (tree_of({"eval": "1"}), "neither a leaf nor a container"),
    "odd float": (tree_of({"float": "0x1"}), "neither a leaf nor a container"),
    "unnamed child": (tree_of({"dict": [1]}), "child without a name"),
    "twins": (tree_of({"dict": [["a", 1], ["a", 2]]}), "two children of one name"),
    "missing": (tree_of(array("b"), two), r"'b' is not in the file"),
    "used twice": (tree_of({"list": [array(), array()]}, two), r"\[1\]: its array 'a' is not in the file"),
    "left over": (tree_of(1, two), r"arrays that its tree does not name: \['a'\]"),
    "dtype": (tree_of(array(dtype="int64"), two), r"float64\[2\] stored as int64"),
    "shape": (tree_of(array(shape=[1]), two), r"float64\[2\] stored as float64\[1\]"),
    "object": (tree_of(array(dtype="object"), two), "dtype 'object'"),
    "code": (tree_of(array(dtype="f8,O"), two), "dtype 'f8,O'"),
    "no dtype": (tree_of(array(dtype="int7"), two), "not a valid array"),
    "short": (tree_of(array(dtype="complex128", shape=[2]), two), "not a valid array"),
    "long": (tree_of(array(dtype="bfloat16", shape=[2]), two), r"16 bytes stored for bfloat16\[2\]"),
    "negative": (tree_of(array(dtype="bfloat16", shape=[-2]), two), "not a valid array"),
    "vast": (tree_of(array(dtype="bfloat16", shape=[10**30]), two), "not a valid array"),
    "odd shape": (tree_of(array(dtype="bfloat16", shape=["a"]), two), "not a valid array"),
    "unknown object": (made("os.system"), "unknown class 'os.system'"),
    "unknown class": (tree_of({"class": "Popen"}), "unknown class 'Popen'"),
    "object of other fields": (
        tree_of({"object": "Span", "from": [["low", 1.0], ["top", 2.0]], "jax": []}),
        "not a Span",
    ),
    "object its class refuses": (
        tree_of({"object": "Scale", "from": [["weight", -1.0]], "jax": []}),
        "weight must be positive",
    ),
    "object that is not sound": (
        tree_of({"object": "Span", "from": [["low", 2.0], ["high", 1.0]], "jax": []}),
        "low is above",
    ),
    "object with more": (tree_of({"object": "Span", "from": [], "jax": [], "run": 1}), "neither a leaf"),
    "key": (tree_of({"key": "rot13", "data": array()}, two), "not a random key"),
    "key data": (tree_of({"key": "threefry2x32", "data": "a"}), "neither a leaf"),
    "keys": (tree_of({"key": "rbg", "data": {"key": "rbg", "data": 1}}), "neither a leaf"),
}


@pytest.mark.parametrize("case", hostile)
def test_foreign_and_hostile_files_are_refused(path, case):
    data, message = hostile[case]
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=rf"(?s)run\.thalweg: .*({message})"):
        files.load(path)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match="is a folder"):
        files.load(tmp_path)
    with pytest.raises(IsADirectoryError, match="is a folder; name a file in it"):
        files.save(tmp_path, {"x": np.ones(2)}, kind="run")
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_refused_or_right(path, data):
    tree = {"w": np.arange(5.0), "c": np.ones(2, np.complex128), "s": ["text", 1, float("inf"), None]}
    if not path.exists():
        files.save(path, tree, {"a": "b"}, kind="test")
    whole = path.read_bytes()
    damaged = bytearray(whole)
    if data.draw(st.booleans(), "truncate"):
        del damaged[data.draw(st.integers(0, len(whole) - 1), "length") :]
    else:
        for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=3), "places"):
            damaged[place] ^= data.draw(st.integers(1, 255), "flip")
    broken = path.with_suffix(".broken")
    broken.write_bytes(damaged)
    try:
        loaded = files.load(broken)
    except FileFormatError:
        return
    assert same(loaded, (tree, {"a": "b"}))


def test_every_single_flipped_byte_of_the_data_is_caught(path):
    files.save(path, {"w": np.arange(5.0)}, kind="test")
    whole = path.read_bytes()
    for place in range(len(whole) - 40, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(FileFormatError, match="does not match its checksum"):
            files.load(path)


def test_a_failing_write_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    files.save(path, 1, kind="test")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.save(path, 2, kind="test")
    assert [p.name for p in path.parent.iterdir()] == ["run.thalweg"]
    assert files.load(path)[0] == 1


def test_a_symbolic_link_stays_a_link(path):
    files.save(path, 1, kind="test")
    link = path.with_name("link")
    link.symlink_to(path)
    files.save(link, 2, kind="test")
    assert link.is_symlink()
    assert files.load(path)[0] == 2


def test_the_file_survives_kill(path):
    program = f"""
import numpy as np
from thalweg import files
n = 0
while True:
    files.save({str(path)!r}, {{"n": n, "x": np.full(200_000, float(n))}}, kind="test")
    n += 1
"""
    for delay in (0.0, 0.029):
        path.unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, "-c", program])
        try:
            deadline = time.monotonic() + 60
            while not path.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.005)
            time.sleep(delay)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        tree, _ = files.load(path, kind="test", like={"n": 0, "x": np.zeros(200_000)})
        assert np.all(tree["x"] == tree["n"])
