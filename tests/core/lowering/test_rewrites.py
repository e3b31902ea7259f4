"""Operations that one kernel computes are joined where nothing else reads what is between them."""

import attrs
import pytest

from augury.blocks import Activation, Linear
from augury.lowering import Activate, Add, AddWeighed, FeedExperts, Multiply, Value
from augury.lowering.rewrites import FeedExpertsAndAdd, MultiplyActivated, with_activated_products, with_sums

X, GATE, UP, HIDDEN, DOWN = (Value(4) for _ in range(5))


def multiply(x, *out):
    return Multiply(x, tuple(Linear(f"w{i}", 4, 4) for i, _ in enumerate(out)), "products", out)


def activate(x, up=None):
    return Activate(x, Activation.SILU, up, out=HIDDEN)


PRODUCTS, ACTIVATED, LAST, SUM = multiply(X, GATE, UP), activate(GATE, UP), multiply(HIDDEN, DOWN), Add(DOWN, None)
FEED_FORWARD = [PRODUCTS, ACTIVATED, LAST, SUM]
BEFORE, AFTER = Add(X, None), multiply(X, Value(4))


def reading(value):
    """Two operations that read a value, or columns of it."""
    return [Add(value, None), Add(value.split(2, 2)[1], None)]


@pytest.mark.parametrize("before", [[], [BEFORE], [BEFORE, AFTER]])
@pytest.mark.parametrize("after", [[], [BEFORE], [AFTER, BEFORE]])
def test_products_are_activated_where_they_are_made_and_made_operands_of_the_next_matrix(before, after):
    *found, made, last, summed = [*with_activated_products([*before, *FEED_FORWARD])]
    assert (found, last, summed) == (before, LAST, SUM)
    assert isinstance(made, MultiplyActivated)
    assert (made.x, made.linears, made.activate, made.reader) == (X, PRODUCTS.linears, ACTIVATED, LAST.linears[0])
    assert made.out == (HIDDEN, GATE, UP)
    assert [*with_activated_products([*before, *FEED_FORWARD, *after])][len(before) + 3 :] == after


def test_one_product_is_activated_as_well():
    made, *_ = with_activated_products([multiply(X, GATE), activate(GATE), LAST])
    assert (made.out, made.reader) == ((HIDDEN, GATE), LAST.linears[0])


@pytest.mark.parametrize("between", [[], [BEFORE], [BEFORE, AFTER]])
@pytest.mark.parametrize("value", [GATE, UP], ids=["gate", "up"])
@pytest.mark.parametrize("which", [0, 1], ids=["all", "columns"])
def test_products_that_something_else_reads_stay(value, which, between):
    operations = [*FEED_FORWARD, *between, reading(value)[which]]
    assert [*with_activated_products(operations)] == operations


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
    assert [*with_activated_products([products, activated, LAST])] == [products, activated, LAST]


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
    found = [*with_activated_products([*FEED_FORWARD, *second])]
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
    assert [*with_sums(operations)] == operations
