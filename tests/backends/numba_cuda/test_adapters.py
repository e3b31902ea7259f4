"""Adapters of slots beside each other: near the reference, and without any the bits of a model that has none."""

import runpy
from pathlib import Path

import attrs
import numpy as np
from oracles.models import nmse
from oracles.passes import joined, run_of

from augury.blocks.adapted import products_of, with_adapters
from augury.files.adapter import Adapter

BLOCKS = runpy.run_path(str(Path(__file__).parent / "test_blocks.py"))
PLAN, load, TOKENS = attrs.evolve(BLOCKS["PLAN"], layers=BLOCKS["PLAN"].layers[:1]), BLOCKS["load"], BLOCKS["TOKENS"][:1]


def test_a_slot_with_adapters_is_near_the_reference_and_the_one_beside_it_keeps_its_bits():
    rng, shapes = np.random.default_rng(3), {name: each for name, each in PLAN.shapes().items() if len(each) == 2}
    sizes = {name: ((2, n_in), (n_out, 2)) for name, (n_out, n_in) in shapes.items() if name in products_of(PLAN)}
    pairs = {name: tuple(rng.normal(0, 0.2, size).astype(np.float32) for size in both) for name, both in sizes.items()}
    plan = with_adapters(PLAN, [Adapter(Path("a"), PLAN.architecture, "", pairs)])
    scales = np.float32([[0.5], [0], [0]])
    batch = attrs.evolve(joined(run_of(TOKENS, slot=0), run_of(TOKENS, slot=1)), scales=scales)
    found, without = np.split(load("numba-cuda", plan).forward(batch).rows(), 2)
    assert nmse(found, load("reference", plan).forward(batch).rows()[: len(TOKENS)]) < 1e-9
    assert np.array_equal(without, load("numba-cuda", PLAN).forward(run_of(TOKENS)).rows())
    assert nmse(found, without) > 1e-4
