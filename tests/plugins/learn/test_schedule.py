"""A training ends when its hours do, however fast the machine is, and a run that takes it up goes by the same plan."""

from types import SimpleNamespace

import numpy as np
import pytest

from augury.errors import OptionError
from augury.plugins.learn import training
from augury.plugins.learn.head import N_BATCH, N_ROW, N_STEPS, HeadSizes
from augury.plugins.learn.schedule import Schedule

SIZES = HeadSizes(32, 8, 16, 4, 4, head_dim=2, n_rot=2, n_layers=1, n_ctx=64, layers=(0, 1, 2), n_drafted=20)
TARGET = SimpleNamespace(norm=np.ones(8, np.float32), softcap=None, output=lambda tokens: np.ones((len(tokens), 8)))


class Machine:
    """A clock that goes on by what is done: seconds of an answered token, and of a batch that learns to draft one token."""

    def __init__(self, of_token, of_batch):
        self.now, self.of_token, self.of_batch, self.saved, self.told = 1000.0, of_token, of_batch, {}, []
        self.slower = 1.0
        self.load, self.save = self.saved.get, self.saved.__setitem__

    def trainer(self, *given):
        trainer, compiled = SimpleNamespace(n_steps=0, weights={}, saved=lambda: {"n": trainer.n_steps}), set()

        def restore(saved):
            trainer.n_steps = saved["n"]

        def took(seconds, what):
            self.now += self.slower * seconds + 20.0 * (what not in compiled)
            compiled.add(what)

        def step(batch, stage):
            trainer.n_steps += 1
            took(self.of_batch * (0.3 + 0.7 * stage), stage)

        def accepted(batch):
            took(self.of_batch / 2, "accepted")
            return np.arange(5)[::-1]

        trainer.step, trainer.accepted, trainer.restore = step, accepted, restore
        return trainer

    def schedule(self, hours, n_epochs=8):
        return Schedule(self, hours, n_epochs, self.told.append, lambda: self.now)

    def recorded(self, schedule, n_most):
        """So many tokens are there when it is enough."""
        n = 0
        while n < n_most and not schedule.is_enough(n):
            self.now += 1000 * self.of_token
            n += 1000
        return n

    def fit(self, schedule, n_tokens):
        n_of_epoch = -(-n_tokens * 19 // 20 // (N_BATCH * N_ROW))
        n_judged = -(-n_tokens // 20 // (N_BATCH * N_ROW))
        trainer, shares = self.trainer(), iter(range(1, 100))

        def accepted(trainer):
            for _ in range(n_judged):
                trainer.accepted(None)
            return [next(shares)]

        corpus = SimpleNamespace(rows=[[]] * N_BATCH * n_of_epoch, batch=list, accepted=accepted)
        n_batches = schedule.plan(7, n_of_epoch, n_judged)
        nothing = (lambda *told: None,) * 3
        training.fit(trainer, self, corpus, 1, *nothing, n_batches=n_batches, is_over=schedule.is_over, n_stages=N_STEPS)
        return trainer.n_steps / n_of_epoch


@pytest.fixture
def machine(monkeypatch):
    def machine(*given):
        made = Machine(*given)
        monkeypatch.setattr(training, "Trainer", made.trainer)
        monkeypatch.setattr(training, "quicker_product", lambda _: None)
        monkeypatch.setattr(training, "monotonic", lambda: made.now)
        return made

    return machine


@pytest.mark.parametrize("hours", [0.5, 2, 8])
@pytest.mark.parametrize(
    ("of_token", "of_batch", "n_most", "slower"),
    [
        (0.004, 1.4, 10**9, 1.0),  # the 1.5B model on two cores
        (0.0005, 0.2, 10**9, 1.0),
        (0.05, 1.0, 10**9, 1.0),
        (0.001, 4.0, 120_000, 1.0),  # texts end before the time does
        (0.004, 1.4, 10**9, 1.3),  # other programs want the machine while it is trained
    ],
)
def test_a_training_takes_the_time_that_it_is_given(machine, hours, of_token, of_batch, n_most, slower):
    machine = machine(of_token, of_batch)
    schedule = machine.schedule(hours, n_epochs=8 if n_most > 10**6 else 400)
    schedule.measure(SIZES, TARGET, is_head=False)
    n = machine.recorded(schedule, n_most)
    machine.slower = slower
    n_epochs = machine.fit(schedule, n)
    assert machine.now - 1000 == pytest.approx(hours * 3600, rel=0.05)
    assert n_epochs > (2.8 if slower == 1.0 and n_most > 10**6 else 1.5)
    if n_most > 10**6:
        assert "there is time for" in machine.told[0]
        assert int(machine.told[0].split()[4]) == pytest.approx(n, rel=0.1)


def test_a_run_that_takes_it_up_goes_by_the_plan_and_by_the_time_that_is_left(machine):
    machine = machine(0.004, 1.4)
    schedule = machine.schedule(2)
    schedule.measure(SIZES, TARGET, is_head=False)
    n = machine.recorded(schedule, 10**9)
    planned = schedule.plan(7, 100, 5)
    machine.now = 10.0**6  # on another day
    resumed = machine.schedule(2)
    assert resumed.is_planned
    assert resumed.n_pieces == 7
    assert resumed.is_enough(n)
    assert resumed.plan(7, 100, 5) == planned
    assert not resumed.is_over()
    machine.now += 7200 - 60 - 0.004 * n
    assert resumed.is_over()


def test_a_time_in_which_nothing_can_be_learnt_is_refused(machine):
    machine = machine(0.004, 1.4)
    with pytest.raises(OptionError, match=r"--hours: 2\.0 min are too short, to begin and to end takes 2\.9 min"):
        machine.schedule(1 / 30).measure(SIZES, TARGET, is_head=False)


def test_without_hours_all_epochs_are_learnt_and_nothing_is_kept(machine):
    machine = machine(1.0, 1.0)
    schedule = machine.schedule(None, 6)
    assert schedule.is_planned
    assert not schedule.is_enough(10**9)
    assert schedule.plan(7, 100, 5) == 600
    assert not schedule.is_over()
    assert (machine.saved, machine.told, schedule.told()) == ({}, [], "")
