"""Every plugin that is installed keeps its contracts, on both CPU backends: a check raises a `ContractError`, or it passed."""

import functools
import itertools

import numpy as np
import pytest
from support.cpu_backends import cpu_backends
from support.more_toys import TINY_DFLASH, TINY_DSPARK, TINY_HEAD, registry_with_toys

from augury.files.gguf import ModelFile
from augury.files.gguf_writer import gguf_file
from augury.testing import toys
from augury.testing.backend.checks import BACKEND_CHECKS, check_backend
from augury.testing.constraint import CONSTRAINT_CHECKS, check_constraint
from augury.testing.drafter.engines import WAYS, chained
from augury.testing.drafter.suite import DRAFTER_CHECKS, REJECTION_CHECKS, drafter_subject
from augury.testing.memory import MEMORY_CHECKS, check_memory_manager
from augury.testing.tiny_model import write_tiny_tokenizer
from augury.testing.toys import TINY_DRAFT

REGISTRY = registry_with_toys()
HYBRIDS = registry_with_toys()  # another one, because plain answers are kept by registry
BACKENDS = ("toy", *sorted({*cpu_backends(REGISTRY)} - {"toy"}), "toy-recurrent:is_hybrid=true")
OPTIONS = {  # with which a drafter drafts on short texts; one without an entry is checked as it is
    "ngram-simple": {"n": 3, "m": 8},
    "ngram-map-k": {"n": 3, "m": 8},
    "ngram-map-k4v": {"n": 3, "m": 4},
    "ngram-mod": {"n_match": 4, "n_min": 2, "n_max": 16},
    "draft-model": {"model": TINY_DRAFT},
    "draft-model in trees": {"model": TINY_DRAFT, "tree": "2x3"},
    # the toys compute no hidden states, and are given none
    "draft-eagle3": {"model": TINY_HEAD, "backend": "numba-cpu"},
    "draft-dflash": {"model": TINY_DFLASH, "backend": "numba-cpu"},
    "draft-dspark": {"model": TINY_DSPARK, "backend": "numba-cpu"},
    "self-spec": {"draft_min": 3, "draft_max": 8},
    "self-spec in layers": {"mode": "layers", "layers": 2},
}
NEVER_DRAFT = ("none", "forced")  # the latter without a constraint: what computes is nothing to them
NAMES = sorted({*REGISTRY.drafters, *OPTIONS} - {"toy-period"})
# whose drafts have no probabilities: they count as certain, whoever made them, so that ngram-simple and recycle stand for these
CERTAIN = (
    "ngram-cache",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "prediction",
    "self-spec",
    "suffix",
)
LEFT_OUT = {  # who never drafts has nothing that could be rejected
    *itertools.product(NEVER_DRAFT, REJECTION_CHECKS),
    *itertools.product(CERTAIN, [check for check in REJECTION_CHECKS if "distribution" in check.name]),
}
CASES = [case for case in itertools.product(NAMES, DRAFTER_CHECKS) if case not in LEFT_OUT]
DRAFTING = [name for name in sorted(REGISTRY.drafters) if name not in (*NEVER_DRAFT, "toy-period")]
# each pair on one backend: a chain is the engine's, and on each backend every drafter is in several of them
CHAINS = [
    (i, pair, BACKENDS[sum(map(DRAFTING.index, pair)) % len(BACKENDS)])
    for i, pair in enumerate(itertools.combinations(DRAFTING, 2))
]


@functools.cache
def subject(name, backends=BACKENDS, registry=REGISTRY):
    backends = backends[:1] if name in NEVER_DRAFT else backends
    return drafter_subject(name.partition(" ")[0], OPTIONS.get(name), backends=backends, registry=registry)


@pytest.mark.sample(9, rest=63)
@pytest.mark.parametrize(("name", "check"), CASES, ids=[f"{name}-{check.name}" for name, check in CASES])
def test_a_drafter_keeps_its_contracts(name, check):
    check.run(subject(name))
    if check is DRAFTER_CHECKS[-1] and name not in NEVER_DRAFT:
        assert subject(name).report.n_accepted > 0, "what declines every time proves nothing"


@pytest.fixture(scope="module")
def hybrids(tmp_path_factory):
    return tmp_path_factory.mktemp("hybrid")


@pytest.fixture
def hybrid(monkeypatch, hybrids):
    """The tiny models are LFM2 instead, whose first and last layers are short convolutions."""
    llama = toys.TinySource.fetch

    def fetch(reference, folder, progress):
        path = hybrids / f"{reference.replace(':', '-')}.gguf"
        if not path.exists():
            write_hybrid(path, ModelFile.open(llama(reference, folder, progress)))
        return path

    monkeypatch.setattr(toys.TinySource, "fetch", fetch)
    return hybrids / "tiny-target.gguf"


def write_hybrid(path, llama):
    rng = np.random.default_rng(3)
    n_embd, n_layers = (llama.metadata[f"llama.{key}"] for key in ("embedding_length", "block_count"))
    with gguf_file(path, "lfm2") as writer:
        for key, value in llama.metadata.items():
            if key.startswith("llama.") and not key.endswith("head_count_kv"):
                add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
                add(key.replace("llama.", "lfm2."), value)
        writer.add_array("lfm2.attention.head_count_kv", [i % 2 for i in range(n_layers)])
        writer.add_uint32("lfm2.shortconv.l_cache", 3)
        write_tiny_tokenizer(writer)
        for name, tensor in llama.tensors.items():
            array = tensor.data.view(np.float32).reshape(tensor.shape)
            layer, _, of_layer = name.removeprefix("blk.").partition(".")
            if name == "output_norm.weight":
                writer.add_tensor("token_embd_norm.weight", array)
            elif layer not in {"0", "2"} or not of_layer.startswith("attn_") or of_layer == "attn_norm.weight":
                writer.add_tensor(name, array)
        for name in ("attn_q_norm", "attn_k_norm"):
            for layer in range(1, n_layers, 2):
                writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(32, np.float32))
        for layer in range(0, n_layers, 2):
            for name, shape in {"in_proj": (3 * n_embd, n_embd), "conv": (n_embd, 3), "out_proj": (n_embd, n_embd)}.items():
                values = rng.standard_normal(shape, np.float32) / np.float32(n_embd**0.5)
                writer.add_tensor(f"blk.{layer}.shortconv.{name}.weight", values)


# the others compute on the toy, whatever the file, as they do above; and penalties are nothing to states
BACKENDS_ARE_ASKED = {f"leaves {way} output as it is" for way in ("greedy", "sampled")} | {
    "keeps count where it is verified by rejection"
}
ON_BACKENDS = [check for check in DRAFTER_CHECKS if check.name in BACKENDS_ARE_ASKED]
assert len(ON_BACKENDS) == len(BACKENDS_ARE_ASKED)


@pytest.mark.sample(0, rest=6)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "draft-mtp"])  # LFM2 has no layers for it
def test_a_drafter_keeps_its_contracts_on_a_hybrid_model(name, hybrid):
    checked = subject(name, ("numba-cpu", "reference"), HYBRIDS)
    for check in ON_BACKENDS:
        check.run(checked)
    assert hybrid.exists()
    assert checked.report.n_accepted > 0 or name in NEVER_DRAFT, "what declines every time proves nothing"


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_a_drafter_is_checked(name):
    """What is allowed, docs/options.md says, which is compared with the classes."""
    DRAFTER_CHECKS[0].run(subject(name))


@pytest.mark.sample(9, rest=15)
@pytest.mark.parametrize(("i", "pair", "backend"), CHAINS, ids=[f"{';'.join(pair)}-{backend}" for _, pair, backend in CHAINS])
def test_a_chain_of_two_leaves_the_output_as_it_is(i, pair, backend):
    first, second = pair if i % 2 else reversed(pair)
    way = list(WAYS)[(i + BACKENDS.index(backend)) % len(WAYS)]
    report = chained(subject(first), subject(second), backend, way, is_fixed=bool(i % 3))
    # a planner may decline throughout, and lookups of three tokens on short texts in which one in six is a surprise
    assert report.n_accepted > 0 or not i % 3 or backend.startswith("toy-recurrent"), "what declines every time proves nothing"


@pytest.mark.parametrize("check", CONSTRAINT_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("name", sorted(REGISTRY.constraints))
def test_a_constraint_keeps_its_contracts(name, check):
    check_constraint(name, registry=REGISTRY, checks=[check])


@pytest.mark.parametrize("check", MEMORY_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("name", sorted(REGISTRY.memory_managers))
def test_a_memory_manager_keeps_its_contracts(name, check):
    check_memory_manager(name, checks=[check])


@pytest.mark.sample(8)
@pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("name", sorted({*cpu_backends(REGISTRY)} - {"toy", "toy-recurrent"}))
def test_a_backend_keeps_its_contracts(name, check):
    check_backend(name, checks=[check])
