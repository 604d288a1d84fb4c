import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamcmc.factorization import partition as partitions
from tests.factorization.sparse import power_law


@st.composite
def problems(draw):
    shape = (draw(st.integers(4, 40)), draw(st.integers(4, 30)))
    n = draw(st.integers(1, 200))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    flat = rng.choice(shape[0] * shape[1], min(n, shape[0] * shape[1]), replace=False)
    return flat // shape[1], flat % shape[1], shape, draw(st.integers(1, 4))


def unpacked(p, blocks):
    """(row block, row place, column block, column place, value) of every rating, by walking through the arrays."""
    found = []
    for b in range(p.blocks):
        for part in range(p.blocks):
            for i in range(blocks.indptr.shape[2] - 1):
                for k in range(blocks.indptr[b, part, i], blocks.indptr[b, part, i + 1]):
                    found.append((b, i, (b + part) % p.blocks, int(blocks.columns[b, k]), float(blocks.values[b, k])))
    return found


@given(problems())
def test_every_rating_stands_once_in_its_block(problem):
    row, column, shape, B = problem
    p = partitions.partition(row, column, shape, B)
    value = np.arange(len(row), dtype=np.float32)
    expected = zip(p.rows.block[row], p.rows.place[row], p.columns.block[column], p.columns.place[column], value)
    assert sorted(unpacked(p, partitions.arrange(p, row, column, value))) == sorted(
        tuple(map(float, e)) for e in expected
    )


@given(problems())
def test_blocks_have_equally_many_rows_and_every_row_a_place(problem):
    row, column, shape, B = problem
    p = partitions.partition(row, column, shape, B)
    for side, length in ((p.rows, shape[0]), (p.columns, shape[1])):
        assert np.ptp(side.sizes) <= 1
        assert len(set(zip(side.block, side.place))) == length
        numbers = np.arange(length, dtype=np.float32)[:, None]
        np.testing.assert_array_equal(side.gather(side.scatter(numbers)), numbers)
    assert p.sizes.sum() == p.parts.sum() == len(row)


def test_blocks_are_balanced_by_ratings_not_by_rows():
    row, column, shape = power_law(600, 400, 30_000, seed=1)
    p = partitions.partition(row, column, shape, 4)
    by_row, by_column = p.sizes.sum(1), p.sizes.sum(0)
    assert by_row.max() <= 1.02 * by_row.mean()
    assert by_column.max() <= 1.02 * by_column.mean()
    assert p.imbalance < 1.1
    # Rows in the order of the matrix would not do.
    assert np.bincount(np.sort(row) * 4 // shape[0], minlength=4).max() > 1.2 * len(row) / 4


def test_more_blocks_than_rows_is_an_error():
    with pytest.raises(ValueError, match="blocks must be at most the number of columns: 5 blocks of 3 columns"):
        partitions.partition(np.array([0]), np.array([0]), (9, 3), 5)


def test_files_are_mapped_and_alike(tmp_path):
    row, column, shape = power_law(50, 40, 300, seed=2)
    p = partitions.partition(row, column, shape, 2)
    train = partitions.arrange(p, row, column, np.ones(len(row), np.float32))
    partitions.save(tmp_path / "blocks", p, train, train)
    q, again, _ = partitions.load(tmp_path / "blocks")
    assert isinstance(again.values, np.memmap)
    for a, b in zip([*p.rows, *p.columns, p.sizes, *train], [*q.rows, *q.columns, q.sizes, *again]):
        np.testing.assert_array_equal(a, b)
    assert again.columns.strides[0] % 64 == 0  # each row block begins where a kernel may read it in place
