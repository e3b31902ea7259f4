from hypothesis import given
from hypothesis import strategies as st

from augury.verify import match


@given(draft=st.lists(st.integers(0, 3), max_size=8), target=st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_what_is_emitted_is_what_the_target_chooses_alone(draft, target):
    emitted = match(draft, target.__getitem__)
    assert emitted == target[: len(emitted)]
    assert emitted[:-1] == draft[: len(emitted) - 1]
    assert len(emitted) == len(draft) + 1 or emitted[-1] != draft[len(emitted) - 1]


def test_the_target_is_asked_in_order_and_not_behind_a_rejection():
    asked = []

    def choose(i):
        asked.append(i)
        return [5, 6, 9, 1][i]

    assert match([5, 6, 7], choose) == [5, 6, 9]
    assert asked == [0, 1, 2]
