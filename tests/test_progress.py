"""Progress: who is told, and when a bar is drawn."""

import pytest

from penstock.progress import ProgressMeter, reporting


def test_a_function_of_the_users_is_called_as_it_is() -> None:
    told = []
    with reporting(lambda records, size: told.append((records, size)), "work", 10) as report:
        assert report is not None
        report(3, 30)
    assert told == [(3, 30)]


@pytest.mark.parametrize("progress", [None, False])
def test_nobody_is_told(progress: bool | None) -> None:
    with reporting(progress, "work", 10) as report:
        assert report is None


@pytest.mark.parametrize("progress", [True, ProgressMeter()])
def test_without_a_terminal_nothing_is_drawn(progress: bool | ProgressMeter, capfd: pytest.CaptureFixture[str]) -> None:
    with reporting(progress, "work", 10) as report:
        assert report is not None
        report(10, 100)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("columns", ["40", "120"])
def test_a_bar_goes_to_stderr_and_its_title_is_harmless(
    columns: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", columns)):
        monkeypatch.setenv(name, value)
    with reporting(True, "\x1b]0;EVIL\x07[red]", 10, done=5) as report:
        assert report is not None
        report(5, 100)
    output, errors = capfd.readouterr()
    assert output == ""
    assert "?]0;EVIL?[red]" in errors
    assert not {"\x07", "\x1b]"} & {part for part in ("\x07", "\x1b]") if part in errors}
    assert ("10/10" if columns == "120" else "100%") in errors


def test_a_meter_is_told_where_work_begins_and_counts() -> None:
    begun = []
    meter = ProgressMeter(lambda done, records: begun.append((done, records)))
    with reporting(meter, "work", 10, done=4) as report:
        assert begun == [(4, 10)]
        assert report is not None
        report(2, 20)
        report(4, 40)
    assert meter.num_bytes == 60
