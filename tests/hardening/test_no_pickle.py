"""No file is ever unpickled: the source has no means to, and files with a pickle inside run none of it."""

import ast
import contextlib
import hashlib
import io
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from hamcmc.cli import model_file
from hamcmc.factorization import ratings
from hamcmc.speech import dictionary
from hamcmc.store.checkpoint import MAGIC, Checkpoint, decode, encode
from hamcmc.store.draws import Array, Draws, open_store
from hamcmc.store.errors import RunError
from tests.mutation import ROOT

FORBIDDEN = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "yaml", "jsonpickle"}
OBJECTS = ("object", "'object'", "'O'", "'|O'", "np.object_")
RUNS_CODE = {"cli/model_file.py"}  # the model file that a user names is code


def faults(source: str, name: str = "some.py") -> list[str]:
    """What in a source could run what a file says."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        else:
            names = []
        found += [f"imports {n}" for n in names if n.partition(".")[0] in FORBIDDEN]
        if isinstance(node, ast.keyword):
            text = ast.unparse(node.value)
            if node.arg == "allow_pickle" and text != "False":
                found.append("allow_pickle")
            if node.arg == "object_codec" or (node.arg == "dtype" and text in OBJECTS):
                found.append("object arrays")
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("np.load", "numpy.load") and not any(k.arg == "allow_pickle" for k in node.keywords):
                found.append("np.load without allow_pickle=False")
            if called in ("eval", "exec", "compile", "__import__", "importlib.import_module", "runpy.run_path"):
                found.append(called)
            if called.endswith(".exec_module") and name not in RUNS_CODE:
                found.append(called)
    return found


def test_the_source_cannot_unpickle():
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 50
    found = {str(f.relative_to(ROOT)): faults(f.read_text(), str(f.relative_to(ROOT))) for f in files}
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "import numpy as np\nnp.load(f)",
        "np.load(f, allow_pickle=True)",
        "np.load(f, allow_pickle=trusted)",
        "np.empty(3, dtype=object)",
        "np.array(x, dtype='O')",
        "eval(text)",
        "def f():\n    exec(open(p).read())",
        "spec.loader.exec_module(m)",
        "g.create_array('x', object_codec=c)",
        "importlib.import_module(settings['model'])",
    ],
)
def test_what_could_is_noticed(source):
    assert faults(source)


class Bomb:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path):
    """Where a bomb leaves its mark, and that it would."""
    there = tmp_path / "mark"
    pickle.loads(pickle.dumps(Bomb(there)))
    assert there.exists()
    there.rmdir()
    yield there
    assert not there.exists(), "a planted pickle was run"


def objects(mark: Path) -> np.ndarray:
    array = np.empty(2, object)
    array[:] = [Bomb(mark), 1.0]
    return array


def bytes_of(save, *args, **arrays) -> bytes:
    file = io.BytesIO()
    save(file, *args, **arrays)
    return file.getvalue()


def test_arrays_of_data(tmp_path, mark):
    for content in (bytes_of(np.save, objects(mark)), pickle.dumps(Bomb(mark)), bytes_of(np.savez, x=objects(mark))):
        for name in ("x.npy", "x.npz", "x.csv", "x.tsv"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(model_file.ModelFileError, match=str(tmp_path / name)):
                model_file.read_data(tmp_path / name)


def test_dictionaries(tmp_path, mark):
    path = tmp_path / "d.npz"
    for content in (bytes_of(np.savez, W=objects(mark), alpha=1.2, bin_hertz=31.25, source=""), pickle.dumps(mark)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a dictionary"):
            dictionary.load(path)


def test_ratings(tmp_path, mark):
    for name in ratings.Ratings._fields[:6]:
        (tmp_path / f"{name}.npy").write_bytes(bytes_of(np.save, objects(mark)))
    with pytest.raises(ratings.RatingsError, match="has no ratings, or they are damaged"):
        ratings.load(tmp_path)
    for name in ("r.csv", "r.parquet", "r.npy"):
        (tmp_path / name).write_bytes(pickle.dumps(Bomb(mark)))
        with pytest.raises(ratings.RatingsError, match=name):
            ratings.read(tmp_path / name)


def test_checkpoints(mark):
    """With a right checksum: whoever plants a pickle can count."""
    good = encode(Checkpoint({"status": "running"}, {"state.0": np.arange(2.0)}))
    body = good[len(MAGIC) :].partition(b"\n")[2]
    header = body.partition(b"\n")[0] + b"\n"
    planted = bytes_of(np.savez, **{"state.0": objects(mark)})
    for payload in (header + planted, header + pickle.dumps(Bomb(mark)), pickle.dumps(Bomb(mark), protocol=0)):
        digest = hashlib.sha256(payload).hexdigest().encode()
        with pytest.raises(RunError, match="here is damaged"):
            decode(MAGIC + digest + b"\n" + payload, "here")


@pytest.mark.parametrize("where", ["filters", "compressor", "version 3"])
def test_stores_of_draws(tmp_path, mark, where):
    """Zarr's second format has a codec that unpickles; stores of draws are of the third, with two codecs."""
    path, arrays = tmp_path / "draws.zarr", [Array("posterior", "x", (), "float32")]
    Draws.open(path, arrays, 1, 2, written=None)
    array = path / "posterior" / "x"
    content = pickle.dumps([Bomb(mark), "<f4", (1, 2)])
    if where == "version 3":
        meta = json.loads((array / "zarr.json").read_text())
        meta["codecs"].append({"name": "numcodecs.pickle", "configuration": {}})
        (array / "zarr.json").write_text(json.dumps(meta))
        (array / "c" / "0").mkdir(parents=True, exist_ok=True)
        (array / "c" / "0" / "0").write_bytes(content)
    else:
        for file in path.rglob("zarr.json"):
            file.unlink()
        for folder in (path, path / "posterior"):
            (folder / ".zgroup").write_text('{"zarr_format": 2}')
        meta = {"zarr_format": 2, "shape": [1, 2], "chunks": [1, 2], "dtype": "<f4", "fill_value": 0, "order": "C"}
        codec = {"filters": None, "compressor": None} | {where: {"id": "pickle"} if where == "compressor" else []}
        codec["filters"] = [{"id": "pickle"}] if where == "filters" else None
        (array / ".zarray").write_text(json.dumps(meta | codec))
        (array / "0.0").write_bytes(content)
    with pytest.raises(RunError, match="is missing or damaged"):
        np.asarray(open_store(path, arrays, 1, "r")["posterior/x"][:])


def test_whole_runs(a_run, mark):
    """In the place of every file of a run, one after the other: an error, or the right draws."""
    right = a_run.look()
    files = [f for f in a_run.path.rglob("*") if f.is_file()]
    assert len(files) > 10
    for file in files:
        old = file.read_bytes()
        file.write_bytes(pickle.dumps(Bomb(mark)))
        with contextlib.suppress(RunError):
            np.testing.assert_equal(a_run.look(), right)
        file.write_bytes(old)
