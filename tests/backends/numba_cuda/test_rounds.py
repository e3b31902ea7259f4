"""What a round of a request reads of a pass's logits: bytes that cross the bus, and how often the host waits."""

import numpy as np
import pytest
from cuda_simulator.device import SimulatedDevice
from oracles.cuda_products import PassedLogits

from augury.engine.sampler import Sampler
from augury.passes import ArrayPass
from augury.sampling import SamplingParams

N_VOCAB, K = 2000, 3  # drafted tokens, so there are four rows
ROW = 4 * N_VOCAB


class Mask:
    """Allows all but a few, or a few."""

    name = "mask"

    def __init__(self, n_allowed):
        self.n_allowed = n_allowed

    def allowed(self, history, n_emitted):
        return np.random.default_rng(len(history)).permutation(N_VOCAB) < self.n_allowed


# by request: how it samples, what it is held to, whether drafts are verified by rejection, and what a round may take: bytes to
# the host in all, and waits
TOP_K = 8 * 40 * (K + 1)
REQUESTS = {
    "top-k and what comes after it": ({"top_p": 0.9, "min_p": 0.05, "seed": 4}, None, False, TOP_K, 1),
    "verified by rejection": ({}, None, True, TOP_K, 1),
    "penalties": ({"repeat_penalty": 1.2, "presence_penalty": 0.3}, None, False, 3 * TOP_K + 4 * (K + 1) * 80, 1),
    "penalties of a greedy one": ({"temperature": 0.0, "repeat_penalty": 1.2}, None, False, 3 * TOP_K, 1),
    "forbidden tokens": ({"logit_bias": {3: -np.inf, 77: 2.0}, "temperature": 0.0}, None, False, TOP_K, 1),
    "a constraint that forbids few": ({}, Mask(1950), False, 2 * TOP_K, 1),
    "a constraint that allows few": ({"temperature": 0.0}, Mask(20), False, TOP_K + (K + 1) * 4 * 256, 1 + K + 1),
    "all tokens": ({"top_k": 0}, None, False, (K + 1) * ROW, 1 + K + 1),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", REQUESTS)
def test_a_round_reads_of_logits_what_it_needs_and_waits_once(name, monkeypatch):
    params, mask, rejects, most_bytes, most_waits = REQUESTS[name]
    rng = np.random.default_rng(7)
    logits = np.round(rng.standard_normal((K + 1, N_VOCAB)) * 8, 2).astype(np.float32)
    passes, text = PassedLogits(SimulatedDevice(), logits), rng.integers(0, N_VOCAB, 90).astype(np.int32)
    device, read, waits = passes.reader.device, [], []
    fetch = device.fetch
    monkeypatch.setattr(device, "fetch", lambda at, array: (read.append(array.nbytes), fetch(at, array)))
    monkeypatch.setattr(device, "wait", lambda: waits.append(1))

    def chosen(passed, start):
        """What a round chooses whose draft is right to the end, after text up to `start`."""
        passed.wait()
        sampler = Sampler(SamplingParams(**{"seed": 1, **params}), n_vocab=N_VOCAB, constraint=mask)
        at = [(passed, row, text[: start + row], row) for row in range(K + 1)]
        return [tuple(sampler.distribution(*each)[0]) if rejects else sampler.choose(*each) for each in at]

    for start in (60, 60 + K + 1):  # the first round has to learn what is asked for
        read.clear()
        waits.clear()
        tokens = text[start - 1 : start + K]
        assert chosen(passes(N_VOCAB, tokens), start) == chosen(ArrayPass(logits), start)
    assert (sum(read) <= most_bytes, len(waits) <= most_waits) == (True, True), (read, waits)


def test_the_rows_of_a_slot_come_with_its_tokens_alone():
    logits = np.random.default_rng(3).standard_normal((3, 600)).astype(np.float32)
    passes = PassedLogits(SimulatedDevice(), logits)
    slots, tokens = np.array([0, 1, 1], np.int32), np.array([5, 6, 7], np.int32)
    for _ in range(2):
        passed = passes(600, tokens, slots)
        found = [passed.gather(0, np.array([9, 9])), passed.gather(2, np.array([2, 7, 599])), passed.gather(1, np.array([0]))]
    assert [each.tolist() for each in found] == [
        logits[0, [9, 9]].tolist(),
        logits[2, [2, 7, 599]].tolist(),
        logits[1, [0]].tolist(),
    ]
    assert {row: ids.tolist() for row, ids in passed._begun.ids.items()} == {
        0: [5, 9],
        1: [0, 2, 6, 7, 599],
        2: [0, 2, 6, 7, 599],
    }
    assert passes(600, tokens[:1], slots[:1])._begun.ids.keys() == {0}
    assert passes(600, tokens[1:2], slots[1:2])._begun.ids.keys() == {0}, "another slot's pass has forgotten nothing"
