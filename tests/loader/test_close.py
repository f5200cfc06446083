"""Closing a loader stops everything it started, and loses nothing."""

import threading

import numpy as np

import penstock as pen


def make_loader() -> pen.Loader:
    return pen.Loader(pen.open(np.arange(1000), field="x").map(lambda record: record).shuffle(seed=7), batch_size=10, threads=2)


def test_a_closed_loader_has_no_threads_and_goes_on_where_it_stood() -> None:
    expected = [batch["x"].tolist() for batch in make_loader()]
    before = threading.active_count()
    with make_loader() as loader:
        batches = iter(loader)
        found = [next(batches)["x"].tolist() for _ in range(3)]
        assert threading.active_count() > before
    assert threading.active_count() == before
    loader.close()
    found += [batch["x"].tolist() for batch in loader]
    assert found == expected


def test_closing_one_loader_leaves_another_alone() -> None:
    with make_loader() as one, make_loader() as other:
        next(iter(one))
        batches = iter(other)
        next(batches)
        one.close()
        assert len(list(batches)) == 99
