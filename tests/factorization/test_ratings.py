"""Files of ratings: every format gives the same ratings, every fault is named with file and line."""

import gzip
import io
import zipfile

import numpy as np
import polars as pl
import pytest

from hamcmc.factorization import ratings as files
from hamcmc.factorization.ratings import Ratings, RatingsError
from hamcmc.store.errors import RunError

CSV = b"userId,movieId,rating,timestamp\n10,b,3.5,1\n9,a,4,2\n10,a,1,3\n"


def parquet(**columns) -> bytes:
    """The bytes of a Parquet file."""
    buffer = io.BytesIO()
    pl.DataFrame(columns).write_parquet(buffer)
    return buffer.getvalue()


FORMATS = {
    "ratings.csv": CSV,
    "dos.csv": b"\xef\xbb\xbf" + CSV.replace(b"\n", b"\r\n"),
    "gaps.csv": b"\n" + CSV.replace(b"\n", b"\n\n") + b"\n , \n",
    "quoted.csv": b'"Rating","Item","User"\n3.5,"b","10"\n4,a, 9\n"1",a,10\n',
    "semicolons.csv": CSV.replace(b",", b";"),
    "ratings.csv.gz": gzip.compress(CSV),
    "ratings.tsv": CSV.replace(b",", b"\t"),
    "u.data": CSV.partition(b"\n")[2].replace(b",", b"\t"),
    "ratings.dat": CSV.partition(b"\n")[2].replace(b",", b"::"),
    "header.dat": CSV.replace(b",", b"::"),
    "no_header.csv": CSV.partition(b"\n")[2],
    "ratings.parquet": parquet(USER=[10, 9, 10], item=["b", "a", "a"], score=[3.5, 4.0, 1.0], extra=[[1], [2], [3]]),
    "gaps.parquet": parquet(user_id=[10.0, 9.0, 10.0], item_id=["b", "a", "a"], value=["3.5", "4", "1"]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_ratings(tmp_path, name):
    (tmp_path / name).write_bytes(FORMATS[name])
    found = files.read(tmp_path / name)
    assert found.users.tolist() == ["9", "10"]  # as numbers
    assert found.items.tolist() == ["a", "b"]
    assert found.row.tolist() == [1, 0, 1]
    assert found.column.tolist() == [1, 0, 0]
    assert found.value.tolist() == [3.5, 4.0, 1.0]
    assert (found.row.dtype, found.column.dtype, found.value.dtype) == (np.int32, np.int32, np.float32)
    assert not found.test.any()
    assert found.range == (1.0, 4.0)
    assert found.duplicates_dropped == 0
    assert files.checksum(found) == files.checksum(files.read(tmp_path / name))


HEAD = b"user,item,rating\n1,2,3\n"
BAD = {
    "no rating": (
        "r.csv",
        b"user,item,much\n1,2,3\n",
        r"r\.csv:1: no column rating .*there are 'user', 'item', 'much'",
    ),
    "late header": ("r.csv", b"\n\nuser,thing,rating\n1,2,3\n", r"r\.csv:3: no column item"),
    "parquet column": ("r.parquet", parquet(user=[1], item=[2]), r"r\.parquet: no column rating .*'user', 'item'$"),
    "not a number": ("r.csv", HEAD + b"1,3,good\n", r"r\.csv:3: the rating 'good' is not a number"),
    "after a broken line": (
        "r.csv",
        HEAD + b'"a\nb",3,4\n\n1,3,good\n',
        r"r\.csv:6: the rating 'good' is not a number",
    ),
    "after empty lines": ("r.csv", b"\n\n" + HEAD + b"1,3,good\n", r"r\.csv:5: the rating 'good' is not a number"),
    "in ::": ("r.dat", b"1::2::3::4\n\n1::5::x::4\n", r"r\.dat:3: the rating 'x' is not a number"),
    "nan": ("r.csv", HEAD + b"1,3,nan\n", r"r\.csv:3: the rating 'nan' is not a finite number"),
    "inf": ("r.csv", HEAD + b"1,3,-inf\n", r"r\.csv:3: the rating '-inf' is not a finite number"),
    "too large": ("r.csv", HEAD + b"1,3,1e300\n", r"r\.csv:3: the rating '1e300' is not a finite number"),
    "parquet nan": (
        "r.parquet",
        parquet(user=[1, 2], item=[2, 2], rating=[1.0, np.nan]),
        r"r\.parquet, row 2: the rating",
    ),
    "parquet type": (
        "r.parquet",
        parquet(user=[1], item=[2], rating=[[1]]),
        r"r\.parquet: the column 'rating' has no n",
    ),
    "no rating there": ("r.csv", HEAD + b"1,3,\n", r"r\.csv:3: the rating is empty"),
    "no user": ("r.csv", HEAD + b",3,4\n", r"r\.csv:3: no user id"),
    "no item": ("r.csv", HEAD + b"1,  ,4\n", r"r\.csv:3: no item id"),
    "parquet item": (
        "r.parquet",
        parquet(user=[1, 2], item=["a", None], rating=[1, 2]),
        r"r\.parquet, row 2: no item id",
    ),
    "too short": ("r.csv", HEAD + b"1,3\n", r"r\.csv:3: 2 fields where 3 belong"),
    "too long": ("r.csv", HEAD + b"1,3,4,5\n", r"r\.csv:3: 4 fields where 3 belong"),
    "too short ::": ("r.dat", b"1::2::3::4\n1::2\n", r"r\.dat:2: 2 fields where 4 belong"),
    "too long ::": ("r.dat", b"1::2::3::4\n1::2::3::4::5\n", r"r\.dat:2: 5 fields where 4 belong"),
    "open quote": ("r.csv", HEAD + b'1,"3,4\n1,4,5\n', r"r\.csv:3: 2 fields where 3 belong"),
    "stray quote": ("r.csv", HEAD + b'1,a"3,4\n1,4,5\n', r"r\.csv:3: a quote is not closed"),
    "long id": ("r.csv", HEAD + b"1," + 300 * b"x" + b",4\n", r"r\.csv:3: the item id has 300 characters"),
    "not UTF-8": ("r.csv", HEAD + b"1,\xff,4\n", r"r\.csv:3: not UTF-8"),
    "empty": ("r.csv", b"", r"r\.csv is empty"),
    "blank": ("r.csv", b"\n \n", r"r\.csv is empty"),
    "only a header": ("r.csv", b"user,item,rating\n", r"r\.csv has no lines with data"),
    "empty parquet": ("r.parquet", parquet(user=[], item=[], rating=[]), r"r\.parquet has no lines with data"),
    "binary": ("r.csv", b"\x89PNG\r\n\0\0", r"r\.csv is neither text nor Parquet"),
    "text as parquet": ("r.parquet", HEAD, r"r\.parquet is neither text nor Parquet"),
    "cut parquet": ("r.parquet", parquet(user=[1], item=[2], rating=[3])[:-9], r"r\.parquet is a damaged Parquet file"),
    "cut gzip": ("r.csv.gz", gzip.compress(CSV)[:-9], r"r\.csv\.gz cannot be read"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_fault_is_named_with_file_and_line(tmp_path, fault):
    name, content, message = BAD[fault]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RatingsError, match=f"^{tmp_path}/{message}"):
        files.read(tmp_path / name)


def test_what_is_no_file_of_ratings_is_refused(tmp_path):
    with pytest.raises(RatingsError, match="is a directory"):
        files.read(tmp_path)
    with pytest.raises(RatingsError, match="No such file"):
        files.read(tmp_path / "none.csv")
    with zipfile.ZipFile(tmp_path / "ml.zip", "w") as archive:
        archive.writestr("ratings.csv", CSV)
    with pytest.raises(RatingsError, match="zip archive: unpack it"):
        files.read(tmp_path / "ml.zip")


def test_columns_can_be_named(tmp_path):
    file = tmp_path / "r.csv"
    file.write_bytes(b"rating,who,What\n9,ann,pen\n")
    found = files.read(file, user="who", item="what", rating="rating")
    assert (found.users.tolist(), found.items.tolist(), found.value.tolist()) == (["ann"], ["pen"], [9.0])
    with pytest.raises(RatingsError, match=r"r\.csv:1: no column 'nobody'; there are 'rating', 'who', 'What'"):
        files.read(file, user="nobody", item="what")


def test_pairs_are_read_in_their_order(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_bytes(b"item,user\nx,2\nx,10\nx,2\n")
    users, items = files.read_pairs(file)
    assert (users.tolist(), items.tolist()) == (["2", "10", "2"], ["x", "x", "x"])
    file.write_bytes(b"item,user\nx,2\nx,\n")
    with pytest.raises(RatingsError, match=r"pairs\.csv:3: no user id"):
        files.read_pairs(file)


def test_duplicates(tmp_path):
    file = tmp_path / "r.csv"
    file.write_bytes(HEAD + b"1,3,4\n\n1,2,5\n2,2,1\n1,2,1\n")
    as_dict = lambda r: {(r.users[i], r.items[j]): v for i, j, v in zip(r.row, r.column, r.value)}
    last, mean = files.read(file), files.read(file, duplicates="mean")
    assert as_dict(last) == {("1", "2"): 1.0, ("1", "3"): 4.0, ("2", "2"): 1.0}
    assert as_dict(mean) == {("1", "2"): 3.0, ("1", "3"): 4.0, ("2", "2"): 1.0}
    assert (last.duplicates_dropped, mean.duplicates_dropped) == (2, 2)
    with pytest.raises(RatingsError, match=r"r\.csv:5: the same user and item as in .*r\.csv:2$"):
        files.read(file, duplicates="error")
    with pytest.raises(ValueError, match="duplicates must be"):
        files.read(file, duplicates="first")


def test_ids_are_text(tmp_path):
    file = tmp_path / "r.csv"
    file.write_bytes("user,item,rating\n007,é,3\n7,x,4\n10,x,5\n".encode())
    found = files.read(file)
    assert found.users.tolist() == ["007", "10", "7"]
    assert found.items.tolist() == ["x", "é"]


@pytest.fixture
def some() -> Ratings:
    """Ten thousand ratings."""
    row, column = (x.ravel().astype(np.int32) for x in np.indices((200, 50)))
    ids = [np.arange(n).astype(str) for n in (200, 50)]
    return Ratings(ids[0], ids[1], row, column, np.arange(10_000, dtype=np.float32) % 5, np.zeros(10_000, bool))


def test_hold_out_follows_from_the_seed(some):
    first, again, other = (files.hold_out(some, 0.1, seed) for seed in (0, 0, 1))
    assert first.test.sum() == 1000
    assert (first.test == again.test).all()
    assert 60 < (first.test & other.test).sum() < 140  # 100 expected of independent splits, sd 9
    assert files.checksum(first) != files.checksum(other)
    assert files.hold_out(some, 0.0, 0).test.sum() == 0
    with pytest.raises(ValueError, match="fraction"):
        files.hold_out(some, 1.0, 0)


def test_saved_ratings_come_back_from_the_disk(tmp_path, some):
    some = files.hold_out(some, 0.1, 0)
    files.save(some, tmp_path / "ratings")
    found = files.load(tmp_path / "ratings")
    assert isinstance(found.value, np.memmap)
    assert files.checksum(found) == files.checksum(some)
    assert {f.name for f in (tmp_path / "ratings").iterdir()} == {
        f"{n}.npy" for n in ("users", "items", "row", "column", "value", "test")
    }


def test_damaged_ratings_are_refused(tmp_path, some):
    files.save(some, tmp_path)
    for name, wrong in (("value", some.value[:-1]), ("row", some.row.astype(np.int64)), ("users", np.array([{}]))):
        np.save(tmp_path / f"{name}.npy", wrong)
        with pytest.raises(RatingsError, match="damaged"):
            files.load(tmp_path)
        files.save(some, tmp_path)
    (tmp_path / "test.npy").unlink()
    with pytest.raises(RatingsError, match=r"test\.npy"):
        files.load(tmp_path)
    with pytest.raises(RunError, match="cannot write"):
        files.save(some, tmp_path / "row.npy" / "below")


@pytest.mark.parametrize(("name", "size"), [("MovieLens 1M", 1_000_209), ("MovieLens 100k", 100_000)])
def test_movielens_is_known_by_its_counts(some, name, size):
    users, items, counts = files.KNOWN[name]
    stars = np.repeat(np.arange(1, 6, dtype=np.float32), counts)
    index = np.zeros(len(stars), np.int32)
    names = np.arange(users).astype(str), np.arange(items).astype(str)
    movielens = Ratings(*names, index, index, stars, np.zeros(len(stars), bool))
    assert len(stars) == size
    assert files.known(movielens) == name
    assert files.known(movielens._replace(users=names[0][1:])) is None
    stars[0] = 2
    assert files.known(movielens) is None
    assert files.known(some) is None
