"""The paper's partition of a sparse matrix: B × B blocks, and B parts of B disjoint blocks.

Part p is the generalised diagonal {(b, (b + p) mod B)}. No two of its blocks share a row or a column, so each can be
worked on by a device of its own. Rows (and columns) are dealt to blocks such that all blocks have the same number of
rows, give or take one, and about the same number of ratings.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from hamcmc.factorization.native import Blocks
from hamcmc.store.files import guard_disk

LANES = 16  # a row block's ratings are padded to a multiple of it, so that each row block is aligned in memory


class Side(NamedTuple):
    """Where the rows (or the columns) of the matrix are.

    Attributes:
        block: the block of each row.
        place: its place there.
        sizes: rows in each block.
        counts: ratings of each place, (B, rows of the largest block); 0 where there is no row.
    """

    block: np.ndarray
    place: np.ndarray
    sizes: np.ndarray
    counts: np.ndarray

    def gather(self, padded: np.ndarray) -> np.ndarray:
        """From (…, B, places, k) by block and place to (…, rows, k) in the order of the matrix."""
        return padded[..., self.block, self.place, :]

    def scatter(self, rows: np.ndarray) -> np.ndarray:
        """The inverse of :meth:`gather`; 0 where there is no row."""
        padded = np.zeros((*self.counts.shape, rows.shape[-1]), rows.dtype)
        padded[self.block, self.place] = rows
        return padded


class Partition(NamedTuple):
    """Rows and columns in blocks, and how many ratings each block (b, c) has."""

    rows: Side
    columns: Side
    sizes: np.ndarray

    @property
    def blocks(self) -> int:
        """B."""
        return len(self.sizes)

    @property
    def parts(self) -> np.ndarray:
        """|Ω_p| of every part."""
        b = np.arange(self.blocks)
        return np.array([self.sizes[b, (b + p) % self.blocks].sum() for p in range(self.blocks)])

    @property
    def imbalance(self) -> float:
        """How many more ratings a part's busiest block has than its mean block: a ratio, averaged over draws."""
        b = np.arange(self.blocks)
        busiest = np.array([self.sizes[b, (b + p) % self.blocks].max() for p in range(self.blocks)])
        share = self.parts / max(self.parts.sum(), 1)
        return float(share @ (busiest * self.blocks / np.maximum(self.parts, 1)))


def partition(row: np.ndarray, column: np.ndarray, shape: tuple[int, int], blocks: int, seed: int = 0) -> Partition:
    """Deal the rows and columns of ratings at (row, column) to blocks."""
    for name, length in zip(("rows", "columns"), shape):
        if blocks > length:
            raise ValueError(f"blocks must be at most the number of {name}: {blocks} blocks of {length} {name}")
    rng = np.random.default_rng(seed)
    rows = deal(np.bincount(row, minlength=shape[0]), blocks, rng)
    columns = deal(np.bincount(column, minlength=shape[1]), blocks, rng)
    flat = rows.block[row].astype(np.int64) * blocks + columns.block[column]
    return Partition(rows, columns, np.bincount(flat, minlength=blocks**2).reshape(blocks, blocks))


def deal(counts: np.ndarray, blocks: int, rng: np.random.Generator) -> Side:
    """Deal rows with these numbers of ratings to blocks: heaviest first, B at a time, the heaviest to the lightest."""
    order = rng.permutation(len(counts))  # shuffles rows of equal weight
    order = order[np.argsort(-counts[order], kind="stable")]
    weight = counts[order].astype(np.int64)
    block, place = np.empty((2, len(counts)), np.int64)
    load = np.zeros(blocks, np.int64)
    for turn, begin in enumerate(range(0, len(counts), blocks)):
        hand = slice(begin, begin + blocks)
        lightest = np.argsort(load, kind="stable")[: len(order[hand])]
        block[order[hand]], place[order[hand]] = lightest, turn
        load[lightest] += weight[hand]
    sizes = np.bincount(block, minlength=blocks)
    padded = np.zeros((blocks, sizes.max()), np.int64)
    padded[block, place] = counts
    return Side(block.astype(np.int32), place.astype(np.int32), sizes.astype(np.int32), padded.astype(np.int32))


def arrange(p: Partition, row: np.ndarray, column: np.ndarray, value: np.ndarray) -> Blocks:
    """Ratings in the kernel's order: by row block, part, row and column, padded to one length."""
    B, rows, columns = p.blocks, p.rows.counts.shape[1], p.columns.counts.shape[1]
    b, c = p.rows.block[row].astype(np.int64), p.columns.block[column]
    place = (b * B + (c - b) % B) * rows + p.rows.place[row]
    order = np.argsort(place * columns + p.columns.place[column])
    per_row = np.bincount(place, minlength=B * B * rows).reshape(B, B * rows)
    lengths = per_row.sum(1)
    if per_row.size and lengths.max() >= 2**31:
        raise ValueError(f"a row block has {lengths.max():,} ratings: use more blocks")
    ends = np.concatenate([np.zeros((B, 1), np.int64), np.cumsum(per_row, 1)], 1)
    first = np.arange(B)[:, None] * rows + np.arange(rows + 1)  # a part's rows, and the end of the last
    indptr = ends[:, first]
    length = max(-(-int(lengths.max(initial=0)) // LANES), 1) * LANES
    shape, begins = (B, length), np.cumsum(lengths) - lengths
    columns_of, values_of = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    for k in range(B):
        mine = order[begins[k] : begins[k] + lengths[k]]
        columns_of[k, : len(mine)] = p.columns.place[column[mine]]
        values_of[k, : len(mine)] = value[mine]
    return Blocks(indptr.astype(np.int32), columns_of, values_of)  # type: ignore[arg-type]


def save(directory: Path, p: Partition, train: Blocks, test: Blocks) -> None:
    """Write a partition and its ratings as .npy files, which :func:`load` maps into memory."""
    with guard_disk(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, array in named(p, train, test).items():
            np.save(directory / f"{name}.npy", array, allow_pickle=False)


def load(directory: Path) -> tuple[Partition, Blocks, Blocks]:
    """What :func:`save` wrote. Ratings stay on disk until they are used."""

    def read(name: str) -> np.ndarray:
        """An array, mapped into memory."""
        return np.load(directory / f"{name}.npy", mmap_mode="r", allow_pickle=False)

    rows, columns = (Side(*(np.asarray(read(f"{s}-{field}")) for field in Side._fields)) for s in ("rows", "columns"))
    p = Partition(rows, columns, np.asarray(read("sizes")))
    train, test = (Blocks(*(read(f"{s}-{field}") for field in Blocks._fields)) for s in ("train", "test"))  # type: ignore
    for ratings in (train, test):
        _check(p, ratings)
    return p, train, test


def _check(p: Partition, ratings: Blocks) -> None:
    """Raise if ratings do not fit a partition. The kernel does not check them, and would read beyond the arrays."""
    B, length = p.blocks, ratings.columns.shape[-1]
    kinds = [str(np.asarray(x).dtype) for x in ratings]
    if kinds != ["int32", "int32", "float32"] or ratings.columns.shape != ratings.values.shape or length % LANES:
        raise ValueError(f"ratings are {', '.join(kinds)}")
    if ratings.indptr.shape != (B, B, p.rows.counts.shape[1] + 1) or ratings.columns.shape != (B, length):
        raise ValueError(f"blocks have the shapes {ratings.indptr.shape} and {ratings.columns.shape}")
    for b in range(B):  # a row block at a time: they may be large
        ends = np.asarray(ratings.indptr[b])
        if (np.diff(ends, axis=-1) < 0).any() or ends.min() < 0 or ends.max() > length:
            raise ValueError(f"row block {b} has ratings beyond its end")
        used = np.asarray(ratings.columns[b])
        if used.min(initial=0) < 0 or used.max(initial=0) >= p.columns.counts.shape[1]:
            raise ValueError(f"row block {b} has ratings of columns that do not exist")
    for side in (p.rows, p.columns):
        if side.block.min() < 0 or side.block.max() >= B or side.place.min() < 0:
            raise ValueError("it has rows in blocks that do not exist")
        if side.place.max() >= side.counts.shape[1] or side.block.shape != side.place.shape:
            raise ValueError("it has rows at places that do not exist")


def named(p: Partition, train: Blocks, test: Blocks) -> dict[str, np.ndarray]:
    """Every array by the name of its file."""
    found = {"sizes": p.sizes}
    for group, value in (("rows", p.rows), ("columns", p.columns), ("train", train), ("test", test)):
        found |= {f"{group}-{field}": np.asarray(array) for field, array in value._asdict().items()}
    return found
