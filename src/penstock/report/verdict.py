"""What the measures of an order mean: one sentence each, and a word."""

from dataclasses import dataclass

from penstock.order.quality import Measure
from penstock.report.words import count, percent

__all__ = ["Verdict", "judge"]


@dataclass(frozen=True)
class Verdict:
    """A measure beside its value for a perfect shuffle: ``word`` is good, fair or poor, ``told`` says what it means here."""

    name: str
    meaning: str
    value: float
    ideal: float
    word: str
    told: str


def judge(measure: Measure, *, n: int, batch_size: int, world: int) -> Verdict:
    """The verdict on one measure."""
    word, told = {"S1": _pairs, "S2": _share, "S3": _labels, "S4": _reunited, "S5": _neighbours, "S6": _ranks}[measure.name](
        measure, n, batch_size, world
    )
    return Verdict(measure.name, measure.meaning, measure.value, measure.ideal, word, told)


def _graded(ratio: float, fair: float, poor: float) -> str:
    return "good" if ratio <= fair else "fair" if ratio <= poor else "poor"


def _pairs(measure: Measure, n: int, batch_size: int, world: int) -> tuple[str, str]:
    word = _graded(measure.value, 1.5, 8)
    if word == "good":
        return word, "records of one block meet in a batch as rarely as by chance"
    return (
        word,
        f"records of one block meet in a batch {count(measure.value)} times as often as by chance",
    )


def _share(measure: Measure, n: int, batch_size: int, world: int) -> tuple[str, str]:
    lost = 1 - measure.value / measure.ideal if measure.ideal > 0 else 0.0
    word = _graded(lost, 0.03, 0.2)
    if word == "good":
        return word, "the records of a batch come from as many blocks as by chance"
    return word, f"a batch is worth {count(2**measure.value)} blocks, that of a perfect shuffle {count(2**measure.ideal)}"


def _labels(measure: Measure, n: int, batch_size: int, world: int) -> tuple[str, str]:
    share = measure.value / measure.ideal if measure.ideal > 0 else 1.0
    word = _graded(1 - share, 0.03, 0.2)
    if word == "good":
        return word, "a batch shows as many labels as that of a perfect shuffle"
    return word, f"a batch shows {percent(share)} of the labels that it would show in a perfect shuffle"


def _reunited(measure: Measure, n: int, batch_size: int, world: int) -> tuple[str, str]:
    batches = min(256, n // batch_size)
    expected = batches * batch_size * (batch_size - 1) / 2 * (batch_size - 1) / (n - 1)
    if expected < 20 and measure.value < 20:
        return "good", "so few pairs meet again by chance that there is nothing to judge"
    word = _graded(measure.value, 1.5, 8)
    if word == "good":
        return word, "who was together in a batch is together again in the next epoch only by chance"
    return word, f"who was together in a batch is together again {count(measure.value)} times as often as by chance"


def _neighbours(measure: Measure, n: int, batch_size: int, world: int) -> tuple[str, str]:
    word = _graded(measure.value, 1.5, 8)
    if word == "good":
        return word, "neighbours in time come from one block as rarely as by chance"
    return word, f"neighbours in time come from one block {count(measure.value)} times as often as by chance"


def _ranks(measure: Measure, n: int, batch_size: int, world: int) -> tuple[str, str]:
    if world == 1:
        return "good", "there is one rank, and it sees everything"
    if measure.value >= 1e-3:
        return "good", f"{world} ranks see the same mix of labels"
    if measure.value >= 1e-6:
        return "fair", f"{world} ranks may see different mixes of labels"
    return "poor", f"{world} ranks see different mixes of labels within an epoch; the next epoch deals anew"
