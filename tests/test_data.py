"""No network but this machine: downloads are replaced by files written here in the exact format of each public home."""

import bz2
import copy
import gzip
import hashlib
import io
import pickle
import struct
import sys
import tarfile
import threading
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import requests
import scipy.io

from thalweg import data
from thalweg.data import converters, store
from thalweg.data.catalogue import CATALOGUE, CatalogueEntry, Raw, shapes
from thalweg.errors import DataNotFoundError, FileFormatError, MissingPackageError

ARRAYS = {"X": np.arange(6, dtype=np.float32).reshape(3, 2), "y": np.array([1, -1, 1], np.int8)}


def npz(arrays):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


@pytest.fixture
def entry():
    """A set of three rows, published as one comma-separated table."""
    return CatalogueEntry(
        name="toy",
        file="sub/toy.npz",
        sha256=hashlib.sha256(npz(ARRAYS)).hexdigest(),
        shapes=shapes(["X float32[3, 2]", "y int8[3]"]),
        description="Three points.",
        source="nowhere",
        licence="none",
        files=[Raw("https://example.org/toy.csv")],
        convert=read_toy,
        note="rows may differ",
        labels={"y": {"1": 2, "-1": 1}},
    )


def read_toy(paths):
    table = np.loadtxt(paths[0], delimiter=",", ndmin=2)
    return {"X": table[:, :2].astype(np.float32), "y": table[:, 2].astype(np.int8)}


class Fetch:
    """Writes the given text where the downloaded file would be, and counts."""

    def __init__(self, text="0,1,1\n2,3,-1\n4,5,1\n"):
        self.text, self.calls = text, 0

    def __call__(self, raw, folder):
        self.calls += 1
        path = folder / raw.name
        path.write_text(self.text)
        return path


def no_fetch(raw, folder):
    raise AssertionError("nothing should be downloaded")


def put(folder, content):
    path = folder / "sub" / "toy.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_a_file_in_the_folder_is_read(entry, tmp_path):
    put(tmp_path / "second", npz(ARRAYS))
    toy = store.obtain(entry, [tmp_path / "first", tmp_path / "second"], no_fetch)
    assert toy.name == "toy"
    assert (toy.description, toy.source, toy.licence) == ("Three points.", "nowhere", "none")
    np.testing.assert_array_equal(toy.X, ARRAYS["X"])
    assert toy["y"] is toy.y
    assert list(toy) == ["X", "y"]
    assert "X" in dir(toy)


def test_a_data_set_cannot_be_changed_and_says_what_it_lacks(entry, tmp_path):
    put(tmp_path, npz(ARRAYS))
    toy = store.obtain(entry, [tmp_path], no_fetch)
    with pytest.raises(AttributeError):
        toy.name = "other"
    with pytest.raises(AttributeError, match="'toy' has no array 'z'; it has X, y"):
        _ = toy.z
    assert copy.copy(toy).X is toy.X
    assert pickle.loads(pickle.dumps(toy)).name == "toy"
    assert toy != copy.copy(toy)
    assert repr(toy) == "Dataset('toy': X float32[3, 2], y int8[3])"


def test_a_damaged_file_is_refused_with_both_checksums_and_the_remedy(entry, tmp_path):
    path = put(tmp_path, damaged := npz(ARRAYS)[:-1])
    found = hashlib.sha256(damaged).hexdigest()
    with pytest.raises(FileFormatError) as caught:
        store.obtain(entry, [tmp_path], no_fetch)
    for part in (str(path), entry.sha256, found, "replace it by an undamaged copy"):
        assert part in str(caught.value)


def test_pickles_inside_an_npz_are_never_opened(entry, tmp_path):
    content = npz({"X": np.array([{"a": 1}], dtype=object)})
    path = put(tmp_path, content)
    with pytest.raises(FileFormatError, match=r"toy\.npz: not an npz file of plain arrays"):
        store.obtain(replace(entry, sha256=hashlib.sha256(content).hexdigest()), [tmp_path], no_fetch)
    path.write_bytes(content := pickle.dumps({"X": 1}))
    with pytest.raises(FileFormatError, match=r"toy\.npz: not an npz file"):
        store.obtain(replace(entry, sha256=hashlib.sha256(content).hexdigest()), [tmp_path], no_fetch)


def test_a_download_is_converted_kept_and_verified_later(entry, tmp_path):
    fetch, cache = Fetch(), tmp_path / "cache"
    first = store.obtain(entry, [tmp_path / "mine", cache], fetch)
    again = store.obtain(entry, [tmp_path / "mine", cache], fetch)
    assert fetch.calls == 1
    for toy in (first, again):
        np.testing.assert_array_equal(toy.X, ARRAYS["X"])
    if hashlib.sha256((cache / entry.file).read_bytes()).hexdigest() != entry.sha256:
        assert first.description == "Three points. This copy was downloaded: rows may differ."
    assert sorted(p.name for p in (cache / "sub").iterdir()) == ["toy.npz", "toy.npz.sha256"]
    kept = cache / "sub" / "toy.npz"
    kept.write_bytes(kept.read_bytes() + b"!")
    with pytest.raises(FileFormatError, match=r"wrong checksum.*delete it, and load\(\) will download it again"):
        store.obtain(entry, [tmp_path / "mine", cache], fetch)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1,1\n2,3,-1\n", r"the download gives (X|y) \(\(2,.*expected \(\(3,"),
        ("0,1,1\n2,3,-1\n4,5,-1\n", "has labels y = {'-1': 2, '1': 1}, expected {'1': 2, '-1': 1}"),
        ("<html>moved</html>", r"https://example.org/toy.csv is not in the format we know"),
    ],
)
def test_a_download_that_is_not_the_set_is_refused_and_not_kept(entry, tmp_path, text, message):
    with pytest.raises(FileFormatError, match=message):
        store.obtain(entry, [tmp_path], Fetch(text))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_says_what_to_do(entry, tmp_path):
    def offline(raw, folder):
        raise requests.ConnectionError("no route to host")

    with pytest.raises(DataNotFoundError, match=r"example\.org/toy\.csv failed .*no route.*try again, or put"):
        store.obtain(entry, [tmp_path], offline)


def test_without_pooch_a_download_says_how_to_install_it_and_a_file_is_read(entry, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingPackageError, match=r"^pooch is not installed: pip install 'thalweg\[data\]'$"):
        store.obtain(entry, [tmp_path], store.download)
    (tmp_path / "sub").mkdir()
    (tmp_path / entry.file).write_bytes(npz(ARRAYS))
    np.testing.assert_array_equal(store.obtain(entry, [tmp_path], store.download).X, ARRAYS["X"])


def test_a_download_with_another_checksum_is_refused(entry, tmp_path):
    def other(raw, folder):
        raise ValueError("hash does not match")

    with pytest.raises(FileFormatError, match=r"toy: https://example\.org/toy\.csv is not the file we know"):
        store.obtain(entry, [tmp_path], other)


@pytest.fixture
def server(tmp_path):
    """A web server on this machine that serves one folder."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_download_from_a_server(server, tmp_path, entry, capsys):
    folder, address = server
    content = b"0,1,1\n2,3,-1\n4,5,1\n"
    (folder / "toy.csv").write_bytes(content)
    for checksum in (None, f"md5:{hashlib.md5(content).hexdigest()}"):
        path = store.download(Raw(f"{address}/toy.csv", checksum), tmp_path / str(checksum)[:3])
        assert path.read_bytes() == content
    assert "toy.csv" in capsys.readouterr().out
    wrong = replace(entry, files=[Raw(f"{address}/toy.csv", "md5:" + "0" * 32)])
    with pytest.raises(FileFormatError, match="is not the file we know"):
        store.obtain(wrong, [tmp_path], store.download)
    missing = replace(entry, files=[Raw(f"{address}/other.csv")])
    with pytest.raises(DataNotFoundError, match="404"):
        store.obtain(missing, [tmp_path], store.download)


def test_a_set_without_a_home_says_which_file_to_put_where(entry, tmp_path):
    with pytest.raises(DataNotFoundError) as caught:
        store.obtain(replace(entry, files=()), [tmp_path], no_fetch)
    for part in (str(tmp_path / "sub" / "toy.npz"), entry.sha256, "nowhere", "no public home"):
        assert part in str(caught.value)


def test_arrays_that_the_home_lacks_are_left_out(entry, tmp_path):
    fuller = replace(
        entry,
        shapes=entry.shapes | shapes(["is_test bool[3]"]),
        without=("is_test",),
    )
    assert list(store.obtain(fuller, [tmp_path], Fetch())) == ["X", "y"]


def test_unknown_names_get_close_matches():
    with pytest.raises(DataNotFoundError, match="no data set is called 'sonnar'; did you mean 'sonar'"):
        data.load("sonnar")
    with pytest.raises(DataNotFoundError, match=r"thalweg\.data\.list\(\) gives the names"):
        data.load("qqqqqqq")


def test_the_environment_names_the_first_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("THALWEG_DATA", str(tmp_path))
    assert data.folders()[0] == tmp_path
    monkeypatch.delenv("THALWEG_DATA")
    assert len(data.folders()) == 1


def test_the_catalogue_is_whole(monkeypatch, tmp_path):
    monkeypatch.setenv("THALWEG_DATA", str(tmp_path))
    monkeypatch.setattr(store.platformdirs, "user_cache_dir", lambda _: str(tmp_path))
    assert len(data.list()) == 44
    assert len([name for name in data.list() if name.startswith("uci/")]) == 27
    for name in data.list():
        entry = CATALOGUE[name]
        assert len(entry.sha256) == 64
        assert entry.labels.keys() <= entry.shapes.keys()
        assert data.locate(name) is None
        text = data.describe(name)
        assert entry.source in text
        assert "not here" in text


# Converters: each on a small file in the raw format of its home.


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def check(arrays, **expected):
    assert arrays.keys() == expected.keys()
    for name, (dtype, values) in expected.items():
        assert arrays[name].dtype == dtype, name
        np.testing.assert_array_equal(arrays[name], values, err_msg=name)


def test_train_and_test_tables(tmp_path):
    paths = [write(tmp_path / "a", "0.5,1.0,1\n0,2,-1\n"), write(tmp_path / "b", "3,4,1\n")]
    check(
        converters.train_and_test_tables(paths),
        X=("float32", [[0.5, 1], [0, 2], [3, 4]]),
        y=("int8", [1, -1, 1]),
        is_train=("bool", [True, True, False]),
    )


def test_regression_with_masks(tmp_path):
    paths = [
        write(tmp_path / "data.csv.gz", gzip.compress(b"0.5,1,2\n3,4,-5.25\n")),
        write(tmp_path / "test_mask.csv.gz", gzip.compress(b"0,1\n1,0\n")),
    ]
    check(
        converters.regression_with_masks(paths),
        X=("float32", [[0.5, 1], [3, 4]]),
        y=("float32", [2, -5.25]),
        test_mask=("bool", [[False, True], [True, False]]),
    )


def test_binary_libsvm(tmp_path):
    train = write(tmp_path / "a9a", "-1 3:1 5:1 \n+1 1:1 \n")
    test = write(tmp_path / "a9a.t", "+1 2:1 \n")
    X, y = [[0, 0, 1, 0, 1], [1, 0, 0, 0, 0]], [-1, 1]
    check(converters.binary_libsvm([train], 5), X=("uint8", X), y=("int8", y))
    check(
        converters.binary_libsvm([train, test], 5),
        X_train=("uint8", X),
        y_train=("int8", y),
        X_test=("uint8", [[0, 1, 0, 0, 0]]),
        y_test=("int8", [1]),
    )


def test_usps(tmp_path):
    def line(label, first):
        pixels = [first] + [-1] * 255
        return f"{label} " + " ".join(f"{i}:{value}" for i, value in enumerate(pixels, 1)) + " \n"

    train = write(tmp_path / "usps.bz2", bz2.compress((line(7, -0.631) + line(4, 0.862) + line(6, 0.5)).encode()))
    test = write(tmp_path / "usps.t.bz2", bz2.compress((line(10, 1) + line(6, 0.25)).encode()))
    arrays = converters.usps([train, test])
    np.testing.assert_array_equal(arrays["X_train"][:, 0], np.float32([-0.631, 0.862, 0.5]))
    assert arrays["X_test"].shape == (2, 256)
    np.testing.assert_array_equal(arrays["y_train"], [6, 3, 5])
    np.testing.assert_array_equal(arrays["y_test"], [9, 5])
    pair = converters.usps_3v5([train, test])
    np.testing.assert_array_equal(pair["digit"], [3, 5, 5])
    np.testing.assert_array_equal(pair["y"], [1, -1, -1])
    np.testing.assert_array_equal(pair["X"][:, 0], np.float32([0.862, 0.5, 0.25]))
    np.testing.assert_array_equal(pair["is_train_original"], [True, True, False])


def test_covtype(tmp_path):
    row = [2596, -51, *range(52), 5]
    path = write(tmp_path / "covtype.data.gz", gzip.compress((",".join(map(str, row)) + "\n").encode()))
    convert = CATALOGUE["covtype"].convert
    assert convert is not None
    arrays = convert([path])
    check(arrays, X=("int16", [row[:-1]]), y=("uint8", [5]), feature_names=("<U34", arrays["feature_names"]))
    assert arrays["feature_names"].shape == (54,)


def test_skin(tmp_path):
    path = write(tmp_path / "Skin_NonSkin.txt", "74\t85\t123\t1\n255\t0\t7\t2\n")
    check(converters.skin([path]), X=("uint8", [[74, 85, 123], [255, 0, 7]]), y=("int8", [1, -1]))


def test_uci_bag_of_words(tmp_path):
    # Word 2 occurs twice in all, word 4 never; document 2 is empty.
    docword = "3\n4\n4\n1 3 9\n1 1 5\n3 1 6\n3 2 2\n"
    paths = [
        write(tmp_path / "docword.nips.txt.gz", gzip.compress(docword.encode())),
        write(tmp_path / "vocab.nips.txt", "alpha\nbeta\ngamma\ndelta\n"),
    ]
    check(
        converters.uci_bag_of_words(paths, more_than=2),
        indptr=("int32", [0, 2, 2, 3]),
        indices=("uint16", [0, 1, 0]),
        counts=("uint16", [5, 9, 6]),
        vocab=("<U5", ["alpha", "gamma"]),
    )


def archive_of(path, **members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_lda_c(tmp_path):
    members = {"ap/ap.dat": b"2 0:1 2:3\n1 1:2\n", "ap/vocab.txt": b"i\nnew\npercent\n"}
    check(
        converters.lda_c([archive_of(tmp_path / "ap.tgz", **members)]),
        indptr=("int32", [0, 2, 3]),
        indices=("uint16", [0, 2, 1]),
        counts=("uint8", [1, 3, 2]),
        vocab=("<U7", ["i", "new", "percent"]),
    )


def test_movielens_1m(tmp_path):
    path = tmp_path / "ml-1m.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ml-1m/ratings.dat", "2::5::3::978300760\n1::9::4::978302109\n1::5::5::978301968\n")
        archive.writestr("ml-1m/movies.dat", "5::Misérables, Les (1995)::Drama|Musical\n".encode("latin-1"))
        archive.writestr("ml-1m/users.dat", "1::F::1::10::48067\n2::M::56::16::70072\n")
    check(
        converters.movielens_1m([path]),
        user=("uint16", [1, 1, 2]),
        movie=("uint16", [5, 9, 5]),
        rating=("uint8", [5, 4, 3]),
        movie_id=("uint16", [5]),
        movie_title=("<U22", ["Misérables, Les (1995)"]),
        movie_genres=("<U13", ["Drama|Musical"]),
        user_gender=("<U1", ["F", "M"]),
        user_age=("uint8", [1, 56]),
        user_occupation=("uint8", [10, 16]),
    )


def test_mnist(tmp_path):
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    images = struct.pack(">4I", 0x803, 2, 2, 3) + pixels.tobytes()
    labels = struct.pack(">2I", 0x801, 2) + bytes([7, 1])
    names = ("train-images", "train-labels", "t10k-images", "t10k-labels")
    paths = [write(tmp_path / f"{name}.gz", gzip.compress(images if "images" in name else labels)) for name in names]
    y = ("uint8", [7, 1])
    check(converters.mnist(paths), X_train=("uint8", pixels), y_train=y, X_test=("uint8", pixels), y_test=y)
    write(paths[0], gzip.compress(b"\x89PNG"))
    with pytest.raises(ValueError, match="not an IDX file"):
        converters.mnist(paths)


def test_cifar10_pca(tmp_path):
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (6, 4, 3073), dtype=np.uint8)
    records[:, :, 0] %= 10
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    members = {f"cifar-10-batches-bin/{n}": r.tobytes() for n, r in zip(names, records, strict=True)}
    arrays = converters.cifar10_pca([archive_of(tmp_path / "cifar.tar.gz", **members)], components=19)
    np.testing.assert_array_equal(arrays["y_train"], records[:5, :, 0].ravel())
    np.testing.assert_array_equal(arrays["y_test"], records[5, :, 0])
    image = records[0, 0, 1:].reshape(3, 32, 32).transpose(1, 2, 0).ravel() / 255
    # Twenty images span nineteen directions around their mean, so nothing is lost.
    rebuilt = arrays["mean"] + arrays["Z_train"][0].astype(float) @ arrays["basis"].T
    np.testing.assert_allclose(rebuilt, image, atol=2e-3)
    variance = arrays["Z_train"].astype(float).var(0)
    np.testing.assert_allclose(arrays["explained_variance"], variance, rtol=1e-3)
    np.testing.assert_allclose(arrays["total_variance"], [arrays["explained_variance"].sum()], rtol=1e-5)
    assert {name: a.dtype.name for name, a in arrays.items()} == {
        name: dtype for name, (_, dtype) in CATALOGUE["cifar10_pca100"].shapes.items()
    }


def test_matlab_files(tmp_path):
    scipy.io.savemat(tmp_path / "crime.mat", {"crime": np.ones((2, 3)), "hyp0": {"mean": 1}})
    check(converters.chicago_assault([tmp_path / "crime.mat"]), xyt=("float32", np.ones((2, 3))))
    columns = {"xfull": [[1], [2], [3]], "yfull": [[0.5], [0.25], [0.75]], "xtest": [[2]]}
    scipy.io.savemat(tmp_path / "audio.mat", columns)
    check(
        converters.sound([tmp_path / "audio.mat"]),
        x=("float32", [1, 2, 3]),
        y=("float32", [0.5, 0.25, 0.75]),
        is_test=("bool", [False, True, False]),
    )


def test_precipitation(tmp_path):
    header = '"station_id","year","month","day","latitude","longitude","time","precipitation"\n'
    check(
        converters.precipitation([write(tmp_path / "p.csv", header + "10008,2010,1,2,-85.25,31.5,25568,7\n")]),
        station=("int32", [10008]),
        longitude=("float32", [-85.25]),
        latitude=("float32", [31.5]),
        day=("uint8", [2]),
        precipitation=("int16", [7]),
    )


# The real files.


@pytest.mark.shared_data
@pytest.mark.slow
@pytest.mark.parametrize("name", data.list())
def test_every_set_has_the_arrays_of_the_catalogue(name):
    if data.locate(name) is None:
        pytest.skip(f"{name} is not here")
    found, entry = data.load(name), CATALOGUE[name]
    assert {array: (a.shape, a.dtype.name) for array, a in found.items()} == entry.shapes
    for array, counts in entry.labels.items():
        values, occurrences = np.unique(found[array], return_counts=True)
        assert dict(zip(map(str, values.tolist()), occurrences.tolist(), strict=True)) == counts


@pytest.mark.shared_data
@pytest.mark.slow
def test_usps_3v5_follows_from_usps(tmp_path):
    usps, pair = data.load("usps"), data.load("usps_3v5")
    paths = []
    for part in ("train", "test"):
        lines = [
            f"{label + 1} " + " ".join(f"{i}:{value:.3f}" for i, value in enumerate(row, 1))
            for label, row in zip(usps[f"y_{part}"], usps[f"X_{part}"], strict=True)
        ]
        paths.append(write(tmp_path / f"{part}.bz2", bz2.compress("\n".join(lines).encode(), 1)))
    for converted, reference in ((converters.usps(paths), usps), (converters.usps_3v5(paths), pair)):
        for name in reference:
            np.testing.assert_array_equal(converted[name], reference[name])
