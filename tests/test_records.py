from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vestige.errors import BadInput
from vestige.records import Column, ImageSpace, Prior, Records, TableSpace

CLASSES = ("a", "b", "c")
SPACE_2 = ImageSpace(1, 2, 2, ("only",))
SPACE = TableSpace((Column("first"), Column("second")), CLASSES)


@st.composite
def tables(draw, smallest: int = 1) -> Records:
    """Small tables in which equal rows are common."""
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0]),
                st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0]),
                st.integers(0, 2),
            ),
            min_size=smallest,
            max_size=60,
        )
    )
    x = torch.tensor([row[:2] for row in rows]).reshape(-1, 2)
    return Records(x, torch.tensor([row[2] for row in rows], dtype=torch.int64), SPACE)


def contents(records: Records) -> list[tuple[float, ...]]:
    return [tuple(row) for row in records.x.tolist()]


shares = st.tuples(*[st.floats(0, 1)] * 3).map(
    lambda three: tuple(share / max(1.0, sum(three)) for share in three)
)


@given(tables(smallest=0), st.integers(0, 2**32), shares)
@settings(deadline=None)
def test_split_is_disjoint_by_content(records, seed, parts):
    train, held_out, prior = records.split(
        seed=seed, train=parts[0], held_out=parts[1], prior=parts[2]
    )
    everything = [*contents(train), *contents(held_out), *contents(prior.records)]
    # Python counts −0 and 0 as one number, and so must the split.
    assert len(everything) == len(set(everything))
    assert set(everything) <= set(contents(records))


@given(tables(smallest=0), st.integers(0, 2**32), shares)
@settings(deadline=None)
def test_split_is_stratified(records, seed, parts):
    splits = records.split(seed=seed, train=parts[0], held_out=parts[1], prior=parts[2])
    counts = Counter(records.distinct().y.tolist())
    for part, share in zip((splits.train, splits.held_out, splits.prior.records), parts):
        found = Counter(part.y.tolist())
        for label, count in counts.items():
            assert abs(found[label] - share * count) <= 1.5


@given(tables(), st.integers(0, 2**32))
@settings(deadline=None)
def test_split_depends_on_the_seed_alone(records, seed):
    before = torch.get_rng_state()
    first, second = records.split(seed=seed), records.split(seed=seed)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.train.x, second.train.x)
    assert torch.equal(first.prior.records.x, second.prior.records.x)


def test_split_takes_everything_if_shares_add_up():
    records = Records(torch.arange(200.0).reshape(100, 2), torch.arange(100) % 2, SPACE)
    splits = records.split(seed=0, train=0.3, held_out=0.1, prior=0.6)
    assert [len(splits.train), len(splits.held_out), len(splits.prior.records)] == [30, 10, 60]
    assert splits.space is SPACE


@pytest.mark.parametrize("wrong", [{"train": 0.7}, {"prior": -0.1}])
def test_split_refuses_wrong_shares(wrong):
    records = Records(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64), SPACE)
    with pytest.raises(BadInput, match="Shares"):
        records.split(seed=0, **wrong)


@given(tables(smallest=0))
@settings(deadline=None)
def test_distinct_keeps_the_first(records):
    kept = records.distinct()
    assert contents(kept) == list(dict.fromkeys(contents(records)))


@given(tables(), st.data())
@settings(deadline=None)
def test_prior_draws_distinct_records_of_the_label(records, data):
    prior = Prior(records.distinct())
    label = data.draw(st.sampled_from([None, 0, 1, 2]))
    available = len(prior.members(label))
    count = data.draw(st.integers(0, available))
    drawn = prior.draw(count, label=label, generator=torch.Generator().manual_seed(1))
    assert len(drawn) == count == len(set(contents(drawn)))
    assert set(contents(drawn)) <= set(contents(records))
    assert label is None or (drawn.y == label).all()
    again = prior.draw(count, label=label, generator=torch.Generator().manual_seed(1))
    assert torch.equal(drawn.x, again.x)
    with pytest.raises(BadInput, match="distinct"):
        prior.draw(available + 1, label=label, generator=torch.Generator())


def test_prior_draws_every_record_equally_often():
    prior = Prior(Records(torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 1, 1]), SPACE))
    generator = torch.Generator().manual_seed(0)
    drawn = Counter(float(prior.draw(1, label=1, generator=generator).x[0, 0]) for _ in range(600))
    assert set(drawn) == {2.0, 4.0, 6.0}
    assert min(drawn.values()) > 150


def test_prior_mean_falls_back_to_all():
    prior = Prior(Records(torch.tensor([[0.0, 2.0], [4.0, 6.0]]), torch.tensor([0, 1]), SPACE))
    assert prior.mean(1).tolist() == [4.0, 6.0]
    assert prior.mean(2).tolist() == prior.mean().tolist() == [2.0, 4.0]


def test_picking_by_slice_indices_and_mask():
    records = Records(torch.arange(6.0).reshape(3, 2), torch.tensor([2, 0, 2]), SPACE)
    assert records[1:].y.tolist() == [0, 2]
    assert records[[2, 0]].x[:, 0].tolist() == [4.0, 0.0]
    assert records[torch.tensor([1])].y.tolist() == [0]
    assert records[records.y == 2].x[:, 0].tolist() == [0.0, 4.0]
    assert len(records[[]]) == 0


@pytest.mark.parametrize("wrong", [1, torch.tensor([True]), [[0, 1]]])
def test_picking_otherwise_is_refused(wrong):
    records = Records(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), SPACE)
    with pytest.raises(BadInput, match="Pick records"):
        records[wrong]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), "shape"),
        (torch.zeros(2, 2), torch.zeros(3, dtype=torch.int64), "one label for each"),
        (torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), "convert"),
        (torch.zeros(2, 2), torch.zeros(2), "convert"),
        (torch.full((2, 2), torch.nan), torch.zeros(2, dtype=torch.int64), "NaN"),
        (torch.zeros(2, 2), torch.tensor([0, 3]), "0 … 2"),
        (torch.zeros(2, 2), torch.tensor([0, -1]), "0 … 2"),
    ],
)
def test_malformed_records_are_refused(x, y, message):
    with pytest.raises(BadInput, match=message):
        Records(x, y, SPACE)


def test_pictures_have_one_or_three_channels():
    assert ImageSpace(3, 4, 5, CLASSES).shape == (3, 4, 5)
    with pytest.raises(BadInput, match="1 or 3 channels"):
        ImageSpace(2, 4, 5, CLASSES)


def test_column_writes_original_values():
    assert Column("age", center=40, scale=10).original(1.5) == 55
    answer = Column("answer", categories=("no", "yes"))
    words = [answer.original(value) for value in (-9.0, 0.4, 0.6, float("inf"), float("nan"))]
    assert words == ["no", "no", "yes", "yes", "not a number"]


def test_records_compare_by_identity():
    first = Records(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64), SPACE)
    second = Records(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64), SPACE)
    assert first == first
    assert first != second


def test_printing_says_how_many_and_what_was_left_out():
    x = torch.arange(40.0).reshape(10, 1, 2, 2)
    records = Records(torch.cat([x, x[:3]]), torch.zeros(13, dtype=torch.int64), SPACE_2)
    parts = records.split(seed=0, train=0.5, held_out=0.2, prior=0.3)
    assert parts.merged == 3
    assert repr(parts) == "Splits(train=5, held_out=2, prior=3; 3 copies of others left out)"
    assert repr(records).startswith("Records(13 of 1 × 2 × 2, 1 classes, ")


def test_descriptions_of_records_differ_as_their_content_does():
    x, y = torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64)
    other = x.clone()
    other[1, 0, 1, 1] = 1e-6
    said = {repr(Records(x, y, SPACE_2)), repr(Records(other, y, SPACE_2))}
    assert len(said) == 2
    assert repr(Records(x.clone(), y, SPACE_2)) in said
