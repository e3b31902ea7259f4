"""Exact distributions of what a program does with random numbers, by going through all that they can be."""

from collections import defaultdict

_N_HALVINGS = 50


class Chance:
    """The chance that a program runs by: `pick` and `number` are what was decided, and plain defaults beyond that."""

    def __init__(self, decided):
        self._decided = decided
        self._n_picked = 0
        self.open = []  # keys that were asked for, but not decided, and for picks their probabilities

    def pick(self, probabilities):
        """A place with these probabilities; each call is independent of all others."""
        key = ("pick", self._n_picked)
        self._n_picked += 1
        if key not in self._decided:
            self.open.append((key, probabilities))
            return next(place for place, p in enumerate(probabilities) if p > 0)
        return self._decided[key]

    def number(self, *key):
        """A number in [0, 1), the same for the same key."""
        if key not in self._decided:
            self.open.append((key, None))
            return 0.0
        return self._decided[key]


def distribution(run):
    """Every outcome of `run(chance)` with its probability, exact but for rounding.

    With all else at its default, the outcome must change with a number as a step function that never comes back to a value.
    """
    found = defaultdict(float)
    todo = [({}, 1.0)]
    while todo:
        decided, weight = todo.pop()
        chance = Chance(decided)
        outcome = run(chance)
        if not chance.open:
            found[outcome] += weight
            continue
        key, probabilities = chance.open[0]
        if probabilities is None:
            steps = _steps(lambda number, known=decided, key=key: run(Chance({**known, key: number})))
        else:
            steps = [(place, p) for place, p in enumerate(probabilities) if p > 0]
        todo += [({**decided, key: value}, weight * share) for value, share in steps]
    return found


def _steps(outcome):
    """A number within each step of a step function on [0, 1), and the step's width."""
    last = 1 - 2**-45  # what rounding alone decides is not a step
    steps, start, at_start, at_last = [], 0.0, outcome(0.0), outcome(last)
    while at_start != at_last:
        low, high = start, last
        for _ in range(_N_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if outcome(middle) == at_start else (low, middle)
        steps.append((start, high - start))
        start, at_start = high, outcome(high)
    return [*steps, (start, 1.0 - start)]
