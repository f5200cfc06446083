"""Phase and Curriculum: shapes change, the line of data goes on."""

import copy
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.order import Curriculum, Mixture, Phase, PhasePlace, Shuffle

MOST = 2**63 - 1
SHAPES = [(5, 4, 8), (3, 2, 16), (2, 8, 4)]  # the phases of acceptance check 37


def phases():
    return st.lists(st.builds(Phase, st.integers(0, 12), st.integers(1, 6), st.integers(1, 9)), max_size=6)


def walk(plan):
    """The model: every step in turn, with the samples and elements before it."""
    sample = element = 0
    for number, phase in enumerate(plan):
        for step in range(phase.steps):
            yield PhasePlace(number, step, sample, element), phase
            sample += phase.batch_size
            element += phase.batch_size * phase.seq_len


@given(plan=phases())
def test_every_step_stands_where_the_steps_before_it_end(plan):
    curriculum = Curriculum(plan)
    expected = list(walk(plan))
    assert len(curriculum) == len(expected)
    assert [curriculum.place(step) for step in range(len(expected))] == [place for place, _ in expected]
    assert curriculum.num_samples == sum(phase.batch_size for _, phase in expected)
    assert curriculum.num_elements == sum(phase.step_elements for _, phase in expected)


@given(plan=phases())
def test_every_element_belongs_to_one_step(plan):
    curriculum = Curriculum(plan)
    owners = [step for step, (_, phase) in enumerate(walk(plan)) for _ in range(phase.step_elements)]
    assert [curriculum.step_of(element) for element in range(curriculum.num_elements)] == owners


@given(plan=phases())
def test_steps_of_the_phases_follow_each_other(plan):
    curriculum = Curriculum(plan)
    assert [step for i in range(len(plan)) for step in curriculum.steps_of(i)] == list(range(len(curriculum)))
    assert all(len(curriculum.steps_of(i)) == phase.steps for i, phase in enumerate(plan))


def test_check_37_phases_read_one_run_of_the_shuffled_line_and_resume_at_every_step():
    curriculum = Curriculum([Phase(*shape) for shape in SHAPES])
    assert (len(curriculum), curriculum.num_elements) == (10, 320)
    line = Shuffle(400, seed=9).indices(0, 0, 400)

    def batches(first):
        for step in range(first, len(curriculum)):
            place = curriculum.place(step)
            phase = curriculum.phases[place.phase]
            yield (
                Shuffle(400, seed=9)
                .indices(0, place.element, place.element + phase.step_elements)
                .reshape(phase.batch_size, phase.seq_len)
            )

    whole = list(batches(0))
    assert [batch.shape for batch in whole] == [(b, s) for n, b, s in SHAPES for _ in range(n)]
    assert np.array_equal(np.concatenate([batch.ravel() for batch in whole]), line[:320])
    assert len(set(line[:320].tolist())) == 320
    for step in range(10):
        rest = list(batches(step))
        assert len(rest) == 10 - step
        assert all(np.array_equal(x, y) for x, y in zip(rest, whole[step:], strict=True))


def test_check_37_holds_for_a_mixture_as_well():
    plan = [Phase(*shape) for shape in SHAPES]
    mix = Mixture([Shuffle(400, seed=9)], seed=1, phases=plan)
    curriculum = Curriculum(plan)
    assert len(mix) == curriculum.num_samples
    elements = []
    for step in range(len(curriculum)):
        place = curriculum.place(step)
        phase = plan[place.phase]
        first = mix.choose(0, place.sample, place.sample + phase.batch_size).element
        elements += [int(e) + k for e in first for k in range(phase.seq_len)]
    assert sorted(elements) == list(range(320))


def test_far_steps_cost_nothing():
    curriculum = Curriculum([Phase(10**12, 8, 128), Phase(10**12, 4, 256), Phase(5, 1, 1)])
    place = curriculum.place(15 * 10**11)
    assert place == PhasePlace(1, 5 * 10**11, 10**12 * 8 + 5 * 10**11 * 4, 10**12 * 1024 + 5 * 10**11 * 1024)
    assert curriculum.step_of(place.element) == curriculum.step_of(place.element + 1023) == 15 * 10**11
    assert curriculum.step_of(place.element - 1) == 15 * 10**11 - 1


@pytest.mark.parametrize(
    ("epochs", "length", "shape", "steps"),
    [
        (1, 100, (4, 8), 3),
        (2.5, 100, (4, 8), 7),
        (Fraction(1, 3), 96, (4, 8), 1),
        (0, 100, (1, 1), 0),
        (0.1, 1000, (1, 1), 100),
        (1, 0, (1, 1), 0),
    ],
)
def test_phase_in_epochs_has_whole_batches(epochs, length, shape, steps):
    plan = [Phase(2, 3, 5), Phase(None, *shape, epochs=epochs), Phase(2, 3, 5)]
    curriculum = Curriculum(plan, length=length)
    assert len(curriculum.steps_of(1)) == steps
    assert curriculum.num_elements == 60 + steps * shape[0] * shape[1]


def test_empty_curriculum_has_no_steps():
    for curriculum in (Curriculum([]), Curriculum([Phase(0)])):
        assert (len(curriculum), curriculum.num_samples, curriculum.num_elements) == (0, 0, 0)
        with pytest.raises(IndexError, match=r"\[0, 0\), got 0"):
            curriculum.place(0)
        with pytest.raises(IndexError, match=r"\[0, 0\), got 0"):
            curriculum.step_of(0)


def test_phases_and_curricula_are_values():
    for value in (Phase(5, 4, 8), Phase(epochs=1.5, weights=(1, 2)), Curriculum([Phase(5, 4, 8)], length=7)):
        assert value == eval(repr(value)) == pickle.loads(pickle.dumps(value)) == copy.deepcopy(value)
    assert Curriculum([Phase(1)]) == Curriculum((Phase(1),))
    assert Curriculum([Phase(1)]) != Curriculum([Phase(2)])
    plan = [Phase(1)]
    curriculum = Curriculum(plan)
    plan.append(Phase(1))
    assert len(curriculum) == 1


@pytest.mark.parametrize("number", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_numbers_of_numpy_are_numbers(number):
    curriculum = Curriculum([Phase(number(100), number(20), number(30)), Phase(number(100), number(20), number(30))])
    plain = Curriculum([Phase(100, 20, 30), Phase(100, 20, 30)])
    assert curriculum.num_elements == plain.num_elements == 120_000
    assert curriculum.place(number(120)) == plain.place(120)
    assert curriculum.place(199) == plain.place(199)
    assert curriculum.step_of(119_999) == 199


BAD = [
    (lambda: Phase(), ValueError, "either steps or epochs", "steps=None, epochs=None"),
    (lambda: Phase(5, epochs=2), ValueError, "either steps or epochs", "steps=5, epochs=2"),
    (lambda: Phase(-1), ValueError, "steps must be in [0, ", "-1"),
    (lambda: Phase(1.5), TypeError, "steps must be a whole number", "1.5"),
    (lambda: Phase(True), TypeError, "steps must be a whole number", "True"),
    (lambda: Phase(1, 0), ValueError, "batch_size must be in [1, ", "0"),
    (lambda: Phase(1, 2.0), TypeError, "batch_size must be a whole number", "2.0"),
    (lambda: Phase(1, 1, 0), ValueError, "seq_len must be in [1, ", "0"),
    (lambda: Phase(1, 1, None), TypeError, "seq_len must be a whole number", "None"),
    (lambda: Phase(epochs=-0.5), ValueError, "epochs must be a finite number of at least 0", "-0.5"),
    (lambda: Phase(epochs=float("nan")), ValueError, "epochs must be a finite number", "nan"),
    (lambda: Phase(epochs=float("inf")), ValueError, "epochs must be a finite number", "inf"),
    (lambda: Phase(epochs="1"), ValueError, "epochs must be a finite number", "'1'"),
    (lambda: Curriculum([Phase(1), 5]), TypeError, "phases must be Phase objects", "5"),
    (lambda: Curriculum([(5, 4, 8)]), TypeError, "phases must be Phase objects", "(5, 4, 8)"),
    (lambda: Curriculum([Phase(epochs=1)]), ValueError, "length", "epochs"),
    (lambda: Curriculum([], length=-1), ValueError, "length must be in [0, ", "-1"),
    (lambda: Curriculum([], length=1.0), TypeError, "length must be a whole number", "1.0"),
    (lambda: Curriculum([Phase(2**62), Phase(2**62)]), ValueError, str(MOST), str(2**63)),
    (lambda: Curriculum([Phase(5)]).place(5), IndexError, "[0, 5)", "5"),
    (lambda: Curriculum([Phase(5)]).step_of(5), IndexError, "[0, 5)", "5"),
    (lambda: Curriculum([Phase(5)]).place(-1), IndexError, "[0, ", "-1"),
    (lambda: Curriculum([Phase(5)]).place(1.0), TypeError, "step must be a whole number", "1.0"),
]


@pytest.mark.parametrize(("make", "error", "expected", "found"), BAD)
def test_bad_input_is_refused_with_expected_and_found(make, error, expected, found):
    with pytest.raises(error) as caught:
        make()
    assert expected in str(caught.value)
    assert found in str(caught.value)
