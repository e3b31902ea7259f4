"""Operations that one kernel computes are joined where nothing else reads what is between them."""

import attrs
import pytest

from augury.blocks import Activation, Linear
from augury.lowering import Activate, Add, AddWeighed, FeedExperts, Multiply, Value
from augury.lowering.rewrites import (
    ACTIVATE_PRODUCTS,
    ADD_SUMS,
    FeedExpertsAndAdd,
    Fused,
    MultiplyActivated,
    Rewrite,
    Uses,
    rewritten,
)

X, GATE, UP, HIDDEN, DOWN = (Value(4) for _ in range(5))


def multiply(x, *out):
    return Multiply(x, tuple(Linear(f"w{i}", 4, 4) for i, _ in enumerate(out)), "products", out)


def activate(x, up=None):
    return Activate(x, Activation.SILU, up, out=HIDDEN)


def with_activated_products(operations):
    return rewritten(operations, [ACTIVATE_PRODUCTS])


def with_sums(operations):
    return rewritten(operations, [ADD_SUMS])


PRODUCTS, ACTIVATED, LAST, SUM = multiply(X, GATE, UP), activate(GATE, UP), multiply(HIDDEN, DOWN), Add(DOWN, None)
FEED_FORWARD = [PRODUCTS, ACTIVATED, LAST, SUM]
BEFORE, AFTER = Add(X, None), multiply(X, Value(4))


def reading(value):
    """Two operations that read a value, or columns of it."""
    return [Add(value, None), Add(value.split(2, 2)[1], None)]


@pytest.mark.parametrize("before", [[], [BEFORE], [BEFORE, AFTER]])
@pytest.mark.parametrize("after", [[], [BEFORE], [AFTER, BEFORE]])
def test_products_are_activated_where_they_are_made_and_made_operands_of_the_next_matrix(before, after):
    *found, made, last, summed = with_activated_products([*before, *FEED_FORWARD])
    assert (found, last, summed) == (before, LAST, SUM)
    assert isinstance(made, MultiplyActivated)
    assert (made.x, made.linears, made.activate, made.reader) == (X, PRODUCTS.linears, ACTIVATED, LAST.linears[0])
    assert made.out == (HIDDEN, GATE, UP)
    assert with_activated_products([*before, *FEED_FORWARD, *after])[len(before) + 3 :] == after


def test_one_product_is_activated_as_well():
    made, *_ = with_activated_products([multiply(X, GATE), activate(GATE), LAST])
    assert (made.out, made.reader) == ((HIDDEN, GATE), LAST.linears[0])


@pytest.mark.parametrize("between", [[], [BEFORE], [BEFORE, AFTER]])
@pytest.mark.parametrize("value", [GATE, UP], ids=["gate", "up"])
@pytest.mark.parametrize("which", [0, 1], ids=["all", "columns"])
def test_products_that_something_else_reads_stay(value, which, between):
    operations = [*FEED_FORWARD, *between, reading(value)[which]]
    assert with_activated_products(operations) == operations


@pytest.mark.parametrize(
    ("products", "activated"),
    [
        (multiply(X, UP, GATE), ACTIVATED),
        (PRODUCTS, activate(GATE)),
        (multiply(X, GATE), ACTIVATED),
        (multiply(X, GATE, UP, DOWN), ACTIVATED),
        (multiply(X, DOWN), activate(GATE)),
        (PRODUCTS, activate(GATE, GATE)),
    ],
)
def test_products_of_which_others_are_activated_stay(products, activated):
    assert with_activated_products([products, activated, LAST]) == [products, activated, LAST]


@pytest.mark.parametrize("between", [[], [BEFORE], [BEFORE, AFTER]])
@pytest.mark.parametrize("which", [0, 1], ids=["all", "columns"])
def test_no_operands_are_made_of_what_something_else_reads(which, between):
    made, *rest = with_activated_products([PRODUCTS, ACTIVATED, LAST, *between, reading(HIDDEN)[which]])
    assert made.reader is None
    assert rest == [LAST, *between, rest[-1]]


@pytest.mark.parametrize(
    "following", [[], [SUM], [Add(HIDDEN, None)], [multiply(X, DOWN)], [multiply(HIDDEN, DOWN, Value(4))], [BEFORE, LAST]]
)
def test_no_operands_are_made_where_the_next_step_is_no_single_matrix_of_them(following):
    made, *rest = with_activated_products([PRODUCTS, ACTIVATED, *following])
    assert (made.activate, made.reader) == (ACTIVATED, None)
    assert rest == following


def test_the_second_of_two_feed_forwards_is_found():
    more, hidden = (Value(4), Value(4)), Value(4)
    second = [multiply(DOWN, *more), attrs.evolve(activate(*more), out=hidden), multiply(hidden, Value(4))]
    found = with_activated_products([*FEED_FORWARD, *second])
    assert [type(each) for each in found] == [MultiplyActivated, Multiply, Add, MultiplyActivated, Multiply]
    assert [each.out[0] for each in found[::3]] == [HIDDEN, hidden]


FEED, WEIGHED = FeedExperts(X, Value(2), None, HIDDEN), AddWeighed(HIDDEN, GATE, None, X, DOWN)


@pytest.mark.parametrize("x", [None, X])
def test_the_shared_expert_is_added_where_the_others_are_added_up(x):
    weighed = attrs.evolve(WEIGHED, x=x)
    first, made, last = with_sums([BEFORE, FEED, weighed, SUM])
    assert (first, last) == (BEFORE, SUM)
    assert isinstance(made, FeedExpertsAndAdd)
    assert (made.feed, made.sum, made.x, made.routes, made.out) == (FEED, weighed, X, FEED.routes, DOWN)
    assert made.added == (GATE, *([] if x is None else [x]))


@pytest.mark.parametrize(
    "operations",
    [
        [FEED, BEFORE, WEIGHED],
        [FEED, attrs.evolve(WEIGHED, y=GATE)],
        [FEED, WEIGHED, Add(HIDDEN, None)],
        [FEED, WEIGHED, SUM, Add(HIDDEN.split(2, 2)[0], None)],
        [FEED, attrs.evolve(WEIGHED, other=HIDDEN)],
    ],
)
def test_a_sum_over_experts_that_something_else_reads_stays(operations):
    assert with_sums(operations) == operations


def renamed(_, *found):
    return [multiply(X, Value(4)) if isinstance(each, Multiply) else Add(X) for each in reversed(found)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ((Multiply, Activate), [Add, Multiply, Multiply, Add]),
        ((Multiply | Activate,), [Multiply, Add, Multiply, Add]),
        ((Activate, Add), [Multiply, Activate, Multiply, Add]),
        ((Activate, Multiply, Add), [Multiply, Add, Multiply, Add]),
        ((Add, Add), [Multiply, Activate, Multiply, Add]),
    ],
)
def test_neighbours_of_a_patterns_kinds_are_replaced_and_all_others_stay(pattern, expected):
    assert [type(each) for each in rewritten(FEED_FORWARD, [Rewrite(pattern, renamed, "")])] == expected


def test_each_rewrite_sees_what_the_one_before_has_left():
    drop, double = Rewrite((Activate,), lambda *_: (), ""), Rewrite((Multiply,), lambda _, each: (each, each), "")
    stay = Rewrite((Activate,), lambda *_: pytest.fail("it was dropped"), "")
    assert rewritten(FEED_FORWARD, [drop, double, stay]) == [PRODUCTS, PRODUCTS, LAST, LAST, SUM]


def test_a_replacement_without_a_pattern_is_that_of_the_whole_list():
    assert rewritten(FEED_FORWARD, [Rewrite((), lambda uses: uses.operations[::-1], "")]) == FEED_FORWARD[::-1]


def test_readers_and_makers_of_values_are_told_by_parts_of_fused_operations():
    more = Add(GATE.split(1, 3)[0])
    uses = Uses([Fused((PRODUCTS, ACTIVATED)), LAST, more])
    assert (uses.makers[GATE], uses.makers[HIDDEN]) == (PRODUCTS, ACTIVATED)
    assert (uses.readers[GATE], uses.readers[HIDDEN]) == ([ACTIVATED, more], [LAST])
    assert (uses.after(LAST), uses.after(more)) == (more, None)
