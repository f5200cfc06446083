"""Figures for people."""

import pytest

from penstock.report.formatting import command_line, count, counted, duration, noun, percent, printable, rate, ratio, size


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (size(0), "0 B"),
        (size(999), "999 B"),
        (size(1500), "1.50 kB"),
        (size(999_960), "1.00 MB"),
        (size(5.71e9), "5.71 GB"),
        (count(256), "256"),
        (count(1234.4), "1,234"),
        (count(3.14159), "3.14"),
        (count(1_850_000), "1.85 million"),
        (count(10**12), "1 trillion"),
        (rate(855_326), "855 k/s"),
        (rate(1_854_873), "1.85 M/s"),
        (rate(12.34), "12.3/s"),
        (duration(0), "0 s"),
        (duration(2e-10), "0 ns"),
        (duration(3.6e-7), "360 ns"),
        (duration(1e-4), "100 µs"),
        (duration(0.0123), "12.3 ms"),
        (duration(75), "75 s"),
        (percent(0.003), "0.3 %"),
        (percent(0.5), "50 %"),
        (percent(1), "100 %"),
        (ratio(0.834), "0.83"),
        (ratio(0.00382), "0.0038"),
        (printable("a\x1bb\u202ec é"), "a\\x1bb\\u202ec é"),
    ],
)
def test_figures_have_units_and_few_digits(made: str, wanted: str) -> None:
    assert made == wanted


def test_a_command_line_can_be_typed_again_and_holds_no_secret() -> None:
    options = {"batch-size": 8, "seconds": 0.5, "block": None, "in-order": True, "json": False}
    assert command_line("bench", ["a b.npy"], options) == "penstock bench 'a b.npy' --batch-size 8 --seconds 0.5 --in-order"
    assert command_line("bench", ["https://me:secret@host/x.npy?token=secret"], {}) == "penstock bench https://host/x.npy"


@pytest.mark.parametrize(
    ("number", "told"),
    [(0, "0 batches"), (1, "1 batch"), (2, "2 batches"), (1.5, "1.50 batches"), (2_000_000, "2 million batches")],
)
def test_one_is_not_several(number: float, told: str) -> None:
    assert counted(number, "batch", "batches") == told
    assert noun(number, "record") == ("record" if number == 1 else "records")
