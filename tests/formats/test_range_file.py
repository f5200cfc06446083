"""A file made of byte ranges is like any other file."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.parquet import RangeFile


@given(
    size=st.integers(0, 50),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("read"), st.integers(-1, 60)),
            st.tuples(st.just("readinto"), st.integers(0, 60)),
            st.tuples(st.just("set"), st.integers(0, 60)),
            st.tuples(st.just("end"), st.integers(-60, 10)),
            st.tuples(st.just("current"), st.integers(-60, 60)),
        ),
        max_size=20,
    ),
)
def test_a_range_file_is_like_any_file(size: int, steps: list[tuple[str, int]]) -> None:
    data = bytes(range(size))

    def read_range(start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= size
        return data[start:stop]

    file, twin = RangeFile(size, read_range), io.BytesIO(data)
    assert file.readable()
    assert file.seekable()
    assert not file.writable()
    for action, amount in steps:
        if action == "read":
            assert file.read(amount) == twin.read(amount)
        elif action == "readinto":
            one, other = bytearray(amount), bytearray(amount)
            assert file.readinto(one) == twin.readinto(other)
            assert one == other
        else:
            whence = {"set": io.SEEK_SET, "end": io.SEEK_END, "current": io.SEEK_CUR}[action]
            if amount + {"set": 0, "end": size, "current": twin.tell()}[action] < 0:
                with pytest.raises(ValueError, match="beginning"):
                    file.seek(amount, whence)
            else:
                assert file.seek(amount, whence) == twin.seek(amount, whence)
        assert file.tell() == twin.tell()


def test_a_range_file_closes() -> None:
    with RangeFile(3, lambda start, stop: b"abc"[start:stop]) as file:
        assert file.read() == b"abc"
    with pytest.raises(ValueError, match="closed"):
        file.read()
