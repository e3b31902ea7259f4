"""Every promise that a memory manager may break is found out."""

import re

import attrs
import pytest

from augury.batch import Reservation
from augury.errors import PluginError
from augury.interfaces import Opened
from augury.plugins.memory.checkpoints import Checkpoints
from augury.plugins.memory.contiguous import Contiguous
from augury.testing import ContractError, check_memory_manager


def mutant(base=Contiguous, /, **changed):
    return type("Mutant", (base,), changed)


class Greedy(Contiguous):
    def open(self, tokens, *, may_reuse, slot=None):
        opened = super().open(tokens, may_reuse=may_reuse, slot=slot)
        return opened and Opened(opened.slot, len(tokens))


class Wishful(Contiguous):
    """Takes two texts of equal length for the same."""

    def open(self, tokens, *, may_reuse, slot=None):
        opened = super().open(tokens, may_reuse=False, slot=slot)
        if opened is None or not may_reuse:
            return opened
        slot = self._slots[opened.slot]
        slot.n = min(int((slot.tokens >= 0).sum()), len(tokens) - 1)
        return Opened(opened.slot, slot.n)


class Insistent(Contiguous):
    def open(self, tokens, *, may_reuse, slot=None):
        return super().open(tokens, may_reuse=True, slot=slot)


class Revealing(Contiguous):
    def end(self, slot):
        self._slots[slot].is_private = False
        super().end(slot)


class Double(Contiguous):
    def open(self, tokens, *, may_reuse, slot=None):
        self._slots[0].is_free = True
        return super().open(tokens, may_reuse=may_reuse, slot=slot)


class Wilful(Contiguous):
    """Gives any slot, whichever was named."""

    def open(self, tokens, *, may_reuse, slot=None):
        return super().open(tokens, may_reuse=may_reuse)


Hesitant = mutant(open=lambda self, tokens, *, may_reuse, slot=None: None)


class Boundless(Contiguous):
    def prepare(self, slot, n_certain, n_drafted):
        return Reservation(mark=self._slots[slot].n, accepted=self._slots[slot].accepted)


class Generous(Contiguous):
    def room(self, slot):
        return super().room(slot) + 1


class Keeping(Contiguous):
    """Never undoes what was rejected."""

    def prepare(self, slot, n_certain, n_drafted):
        reservation = super().prepare(slot, n_certain, n_drafted)
        self.n_new = n_certain + n_drafted
        return reservation

    def commit(self, slot, reservation, tokens, path=None):
        super().commit(slot, reservation, tokens, path)
        self._slots[slot].n = reservation.mark + self.n_new


class Straight(Contiguous):
    """Knows no trees."""

    def commit(self, slot, reservation, tokens, path=None):
        super().commit(slot, reservation, tokens)


class Hasty(Contiguous):
    """Believes that states were moved that were not."""

    def end(self, slot):
        self._slots[slot].accepted = ()
        super().end(slot)


class Replaying(Contiguous):
    """Replays other tokens than it keeps."""

    def prepare(self, slot, n_certain, n_drafted):
        reservation = super().prepare(slot, n_certain, n_drafted)
        return attrs.evolve(reservation, mark=reservation.mark - 1, replay=(0,)) if reservation.mark else reservation


class Raising(Contiguous):
    def end(self, slot):
        raise KeyError(slot)


Weightless = mutant(n_bytes=0)
Stubborn = mutant(truncate=lambda self, slot, n: n + 1)
Unsuitable = mutant(suitable=classmethod(lambda cls, spec: "no state is good enough"))


class Forgiving(Checkpoints):
    """Trusts what a failed pass left in a recurrent state."""

    def end(self, slot):
        self._slots[slot].n_certain = None
        super().end(slot)


class Forgetful(Checkpoints):
    """Names the accepted tokens of trees alone, as if no state had to take them in."""

    def commit(self, slot, reservation, tokens, path=None):
        super().commit(slot, reservation, tokens, path)
        self._slots[slot].accepted = tuple(pair for pair in self._slots[slot].accepted if pair[0] != pair[1])


class Cutting(Checkpoints):
    """Cuts recurrent states as if they were caches."""

    def _reusable(self, slot, n):
        return min(n, self._slots[slot].n)


class Late(Checkpoints):
    """Has states saved when a drafted token was taken in."""

    def prepare(self, slot, n_certain, n_drafted):
        reservation = super().prepare(slot, n_certain, n_drafted)
        return reservation if reservation.save is None else attrs.evolve(reservation, save=reservation.save + 1)

    def commit(self, slot, reservation, tokens, path=None):
        super().commit(
            slot,
            reservation if reservation.save is None else attrs.evolve(reservation, save=reservation.save - 1),
            tokens,
            path,
        )


class Impatient(Checkpoints):
    """Does not wait for what it restores."""

    def prepare(self, slot, n_certain, n_drafted):
        return attrs.evolve(super().prepare(slot, n_certain, n_drafted), restore=False)


class Rewinding(Contiguous):
    """Honest: computes the last token of what it keeps once more with every pass."""

    replays_accepted = True

    @classmethod
    def suitable(cls, spec):
        return "a recurrent state would take it in twice" if spec.n_bytes_per_sequence else None

    def prepare(self, slot, n_certain, n_drafted):
        reservation = super().prepare(slot, n_certain, n_drafted)
        if reservation.accepted or not reservation.mark:
            return reservation
        return attrs.evolve(
            reservation, mark=reservation.mark - 1, replay=(int(self._slots[slot].tokens[reservation.mark - 1]),)
        )


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    ("manager", "told"),
    [
        (Greedy, "Reused are tokens that begin the prompt, never all of it"),
        (Wishful, "a slot holds the text of its request and nothing else. Seen: "),
        (Insistent, "none of or by a request that forbids it"),
        (Revealing, "none of or by a request that forbids it. Seen: 15 of 16 tokens"),
        (Double, "`open` gives a free slot"),
        (Wilful, "`open` gives a free slot to a request, the one that is named"),
        (Hesitant, "Seen: None, after: construction; open of [0, 1"),
        (Boundless, "What does not fit is a CapacityError and changes nothing"),
        (Generous, "`room` is what still fits"),
        (Keeping, "A pass starts at `mark`, with what is kept after that in `replay`"),
        (Straight, "other states than those of"),
        (Hasty, "other states than those of"),
        (Replaying, "A pass starts at `mark`"),
        (Raising, "raises CapacityErrors alone. Seen: KeyError"),
        (Stubborn, "`truncate` keeps at most what it is asked for"),
        (Unsuitable, "suits some kind of state"),
        (Forgiving, "a slot holds the text of its request and nothing else"),
        (Forgetful, "other states than those of"),
        (Cutting, "A memory manager raises CapacityErrors alone. Seen: AssertionError"),
        (Late, "checkpoints with both, with nothing kept aside: Whatever"),
        (Impatient, "other states than those of"),
        (Weightless, "`n_bytes` covers what the slots keep"),
    ],
)
def test_a_broken_promise_is_found_out(manager, told):
    with pytest.raises(ContractError, match=re.escape(told)) as found:
        check_memory_manager(manager)
    assert "See augury." in str(found.value)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("manager", "options"),  # without any: tests/test_conformance.py
    [
        ("checkpoints", {"checkpoint_min_step": 0, "ctx_checkpoints": 3}),
        ("checkpoints", {"checkpoint_min_step": 3, "use_checkpoints": "on"}),
        ("checkpoints", {"ctx_checkpoints": 0}),
        (Rewinding, {}),
    ],
)
def test_an_honest_memory_manager_passes(manager, options):
    check_memory_manager(manager, options)  # raises if it finds anything


def test_a_name_that_does_not_exist_is_an_error():
    with pytest.raises(PluginError, match="did you mean 'contiguous'"):
        check_memory_manager("contigous")
