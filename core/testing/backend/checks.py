"""`check_backend`, the conformance suite of backends: logits are the reference's, and always the same to the bit."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import attrs
import numpy as np

from augury.batch import Batch
from augury.errors import AuguryError, CapacityError, ModelFileError, OptionError, UnsupportedError
from augury.interfaces import Backend, Model
from augury.options import build
from augury.passes import Pass
from augury.registry import Registry
from augury.testing.backend import contract
from augury.testing.backend.subject import N_CTX, BackendSubject
from augury.testing.contract import Check, Checks, Contract, require_hypothesis, try_examples
from augury.testing.tiny_model import N_VOCAB
from augury.testing.toys import registry_with_toys

_WEIGHT_TYPES = ("F32", "F16", "Q8_0", "Q4_0")
_N_TEXT = 80  # tokens, more than a pass of some backends takes
_SLACK = 1 << 20  # bytes of Python objects beside the table's
BACKEND_CHECKS = Checks()


@BACKEND_CHECKS.add
def near_reference(subject: BackendSubject) -> None:
    """Gives the reference's logits."""
    tokens = _tokens(80)
    for weight_type in _WEIGHT_TYPES:
        with closing(subject.load(weight_type)) as model, closing(subject.load(weight_type, is_reference=True)) as oracle:
            whole = model.forward(Batch.chain(tokens)).rows().copy()
            for n_layers in (None, *range(1, model.info.n_layers)):
                batch = Batch.chain(tokens) if n_layers is None else Batch.chain(tokens[:24], layers=(0, n_layers))
                found, right = whole if n_layers is None else model.forward(batch).rows(), oracle.forward(batch).rows()
                if found.dtype != np.float32 or found.shape != right.shape:
                    raise contract.LOGITS.broken(subject.backend.name, f"{found.shape} {found.dtype}")
                subject.near(contract.LOGITS, found, right, f"{weight_type}, {n_layers or 'all'} layers")
            found, whole = model.forward(Batch.chain(tokens[:24], layers=(0, model.info.n_layers))).rows(), whole[:24]
            subject.same(contract.LAYERS, found, whole, "with `layers` of all")


@BACKEND_CHECKS.add
def row_invariance(subject: BackendSubject) -> None:
    """Computes a token the same way in any company."""
    texts = (_tokens(_N_TEXT), _tokens(_N_TEXT, seed=2))
    for weight_type in ("F32", "Q4_0"):
        with closing(subject.load(weight_type)) as model:
            whole, other = (model.forward(Batch.chain(text, slot=slot)).rows().copy() for slot, text in enumerate(texts))
            _splits(subject, model, texts, (whole, other))
            some = np.array([3, _N_TEXT // 2, _N_TEXT - 1], np.int32)
            subject.same(
                contract.ROWS, model.forward(Batch.chain(texts[0], rows=some)).rows(), whole[some], "for some rows alone"
            )
            subject.same(
                contract.ROWS, model.forward(Batch.chain(texts[0][:9], rows=some[:0])).rows(), whole[:0], "for no rows"
            )
        for threads in (1, 3):
            with closing(subject.load(weight_type, threads=threads)) as model:
                subject.same(contract.THREADS, model.forward(Batch.chain(texts[0])).rows(), whole, f"with {threads} threads")


def _splits(subject: BackendSubject, model: Model, texts: Sequence[np.ndarray], whole: Sequence[np.ndarray]) -> None:
    """Two texts in two slots, cut anywhere, their parts side by side."""
    from hypothesis import strategies as st

    cuts = st.lists(st.integers(1, _N_TEXT - 1), max_size=8).map(lambda drawn: [0, *sorted(set(drawn)), _N_TEXT])

    def run(edges: tuple[list[int], list[int]]) -> None:
        for parts in itertools.zip_longest(*map(itertools.pairwise, edges)):
            shares = [(slot, slice(*part)) for slot, part in enumerate(parts) if part is not None]
            batch = _joined([Batch.chain(texts[slot][part], slot=slot, start=part.start) for slot, part in shares])
            right = np.concatenate([whole[slot][part] for slot, part in shares])
            subject.same(contract.ROWS, model.forward(batch).rows(), right, f"of two slots, cut at {edges[0]} and {edges[1]}")

    try_examples(subject.n_examples, run, edges=st.tuples(cuts, cuts))


@BACKEND_CHECKS.add
def stages(subject: BackendSubject) -> None:
    """Computes its layers in parts, and tells of them."""
    tokens, more = _tokens(24), 7
    with closing(subject.load("Q8_0")) as model, closing(subject.load("Q8_0", is_reference=True)) as oracle:
        names = tuple(name for name in oracle.features if name in model.features)
        passed, right = (each.forward(Batch.chain(tokens, features=names)) for each in (model, oracle))
        logits, features = passed.rows().copy(), {name: passed.features(name).copy() for name in names}
        for name, values in features.items():
            if values.shape != (len(tokens), model.features[name]):
                raise contract.FEATURES.broken(subject.backend.name, f"{name} of shape {values.shape}")
            subject.near(contract.FEATURES, values, right.features(name), name)
            joint = _joined([Batch.chain(_tokens(more, seed=3), slot=1), Batch.chain(tokens)])
            found = model.forward(attrs.evolve(joint, features=(name,))).features(name)[more:]
            subject.same(contract.FEATURES, found, values, f"{name} beside another slot")
        for cut in range(1, model.info.n_layers if "layer.0" in names else 1):
            batch = Batch.chain(tokens, layers=(cut, model.info.n_layers), hidden=features[f"layer.{cut - 1}"])
            subject.same(contract.FEATURES, model.forward(batch).rows(), logits, f"from layer {cut} on, given hidden states")


@BACKEND_CHECKS.add
def mtp(subject: BackendSubject) -> None:
    """Computes a layer that predicts further tokens."""
    if not subject.backend.computes_mtp:
        return
    tokens, cut, given = _tokens(24), 15, ("output",)
    with (
        closing(subject.load("Q8_0", has_mtp=True)) as model,
        closing(subject.load("Q8_0", has_mtp=True, is_reference=True)) as oracle,
    ):
        if model.info.heads != oracle.info.heads:
            raise contract.MTP.broken(subject.backend.name, f"has {model.info.heads}, expected {oracle.info.heads}")
        features = oracle.forward(Batch.chain(tokens, features=given)).features("output")
        hidden = np.concatenate([np.zeros_like(features[:1]), features])

        def batch_of(tokens: np.ndarray, start: int = 0, **others: Any) -> Batch:
            rows = np.ascontiguousarray(hidden[start : start + len(tokens)])
            return Batch.chain(tokens, start=start, part="mtp.0", hidden=rows, features=given, **others)

        passed, right = (each.forward(batch_of(tokens)) for each in (model, oracle))
        whole = passed.rows().copy()
        subject.near(contract.MTP, whole, right.rows(), "logits")
        subject.near(contract.MTP, passed.features("output"), right.features("output"), "what is given on")
        plain = model.forward(Batch.chain(tokens)).rows().copy()
        model.forward(batch_of(tokens, slot=1))
        model.forward(batch_of(_tokens(6, seed=3), cut))  # a draft
        last = model.forward(Batch.chain(tokens[-1:], start=len(tokens) - 1)).rows()
        subject.same(contract.MTP, last, plain[-1:], "of the model after a draft of such a layer")
        wanted = np.arange(40, dtype=np.int32)
        found = model.forward(batch_of(tokens[cut:], cut, vocabulary=wanted)).rows()[:, wanted]
        subject.same(contract.MTP, found, whole[cut:, wanted], "of some tokens, after a draft")


@BACKEND_CHECKS.add
def undo(subject: BackendSubject) -> None:
    """Forgets what is stored again."""
    tokens = _tokens(60)
    with closing(subject.load()) as model:
        whole = model.forward(Batch.chain(tokens)).rows().copy()
        model.forward(Batch.chain(tokens[:40]))
        model.forward(Batch.chain(_tokens(20, seed=5), start=40))
        subject.same(
            contract.UNDO, model.forward(Batch.chain(tokens[40:], start=40)).rows(), whole[40:], "after a rejected draft"
        )


@BACKEND_CHECKS.add
def trees(subject: BackendSubject) -> None:
    """Computes trees as chains, and moves states."""
    from hypothesis import strategies as st

    any_parents = st.integers(1, 12).flatmap(lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n))))
    prompt = _tokens(30)
    with closing(subject.load()) as model, closing(subject.load()) as chains:
        for each in (model, chains):
            each.forward(Batch.chain(prompt))  # after which there is another tree, or chain, each time

        def run(parents: tuple[int, ...]) -> None:
            drafted = _tokens(len(parents), seed=3)
            paths: list[list[int]] = []
            for i, parent in enumerate(parents):
                paths.append([*(paths[parent] if parent >= 0 else []), i])
            depths = np.array([len(prompt) + len(path) - 1 for path in paths], np.int32)
            tree = attrs.evolve(Batch.chain(drafted), positions=depths, parents=np.array(parents, np.int32))
            found = model.forward(tree).rows().copy()
            for i, path in enumerate(paths):
                right = chains.forward(Batch.chain(drafted[path], start=len(prompt))).rows()[-1:]
                subject.same(contract.TREES, found[i : i + 1], right, f"of token {i} of a tree with parents {parents}")
            kept = max(paths, key=len)
            moves = [(0, len(prompt) + place, len(prompt) + i) for i, place in enumerate(kept)]
            right = chains.forward(Batch.chain([*drafted[kept], 7], start=len(prompt))).rows()[-1:].copy()
            start = len(prompt) + len(kept)
            found = model.forward(Batch.chain([7], start=start, accepted=np.array(moves, np.int32))).rows()
            subject.same(contract.MOVES, found, right, f"after path {kept} of a tree with parents {parents}")

        try_examples(subject.n_examples, run, parents=any_parents)


@BACKEND_CHECKS.add
def chains(subject: BackendSubject) -> None:
    """Computes what it chooses itself as what it is given."""
    with closing(subject.load("Q4_0")) as model:
        first = _joined([Batch.chain(_tokens(n, seed=n), slot=slot) for slot, n in enumerate((5, 3))])
        first = attrs.evolve(first, rows=np.array([4, 7], np.int32))
        passed = model.forward_chain(first, 4)
        rows, best = passed.rows().copy(), passed.argmax().reshape(4, 2)
        sums = np.array([passed.log_normalizer(row) for row in range(8)])
        following = [
            _joined(
                [Batch.chain([token], slot=slot, start=n + i) for slot, (n, token) in enumerate(zip((5, 3), each, strict=True))]
            )
            for i, each in enumerate(best)
        ]
        after = model.forward(following[3]).rows().copy()
        right, right_sums = list[np.ndarray](), list[float]()
        for batch in (first, *following):
            each = model.forward(batch)
            right.append(each.rows().copy())
            right_sums += [each.log_normalizer(row) for row in range(2)]
        subject.same(contract.CHAINS, rows, np.concatenate(right[:-1]), "of a chain of four passes")
        subject.same(contract.CHAINS, after, right[-1], "after a chain")
        if model.chain_rows:  # the engine makes chains of these alone, and a text's log-probabilities are to be the same
            subject.same(contract.CHAINS, sums, np.array(right_sums[:-2]), "of a chain's sums")
        beyond = Batch.chain([1], start=N_CTX - 1)
        _raises(subject, contract.CHAINS, CapacityError, "a chain beyond a slot", lambda: model.forward_chain(beyond, 2))


@BACKEND_CHECKS.add
def saved_slots(subject: BackendSubject) -> None:
    """Restores slots that were saved."""
    tokens = _tokens(45)
    with closing(subject.load(n_slots=3)) as model, closing(subject.load(n_slots=3)) as other:
        model.forward(Batch.chain(_tokens(45, seed=7), slot=2))
        right = model.forward(Batch.chain(tokens, slot=1)).rows()[37:].copy()
        try:
            saved = model.save(1, 37)
        except UnsupportedError:
            return
        for each, slot in ((model, 2), (other, 0)):
            each.restore(slot, saved)
            found = each.forward(Batch.chain(tokens[37:], slot=slot, start=37)).rows()
            subject.same(contract.SAVED, found, right, f"after 37 positions that were restored into slot {slot}")
        damaged = (b"", saved[:20], saved[:-1], saved + b"x", saved[:60] + bytes([saved[60] ^ 1]) + saved[61:])
        wrongs = [(wrong, f"{len(wrong)} bytes, where {len(saved)} were saved") for wrong in damaged]
        kinds: dict[str, dict[str, Any]] = {f"{option}=bf16": {option: "bf16"} for option in ("cache_type_k", "cache_type_v")}
        for kind, given in kinds.items():
            with suppress(UnsupportedError), closing(subject.load(n_slots=3, **given)) as typed:
                typed.forward(Batch.chain(tokens, slot=1))
                wrongs.append((typed.save(1, 37), f"what a model with {kind} saved, by one with f16,"))
        for wrong, detail in wrongs:
            with suppress(ModelFileError):
                other.restore(1, wrong)
                raise contract.SAVED.broken(subject.backend.name, f"{detail} taken for a slot")


@BACKEND_CHECKS.add
def handle(subject: BackendSubject) -> None:
    """Tells the truth about its rows."""
    with closing(subject.load()) as model:
        _agree(subject, model.forward(Batch.chain(_tokens(5))), N_VOCAB)


def _agree(subject: BackendSubject, logits: Pass, n: int) -> None:
    rows = logits.rows().copy()
    ids = np.array([7, 0, n - 1], np.int32)
    some = np.array([len(rows) - 1, *range(len(rows))], np.int32)  # in an order of their own, one twice
    best, best_values = logits.top_k(some, 9)
    for row, values, ids_of_row, values_of_row in zip(some.tolist(), rows[some], best, best_values, strict=True):
        order = np.lexsort((np.arange(n), -values))[:9]
        exact = float(np.log(np.exp(values.astype(np.float64)).sum()))
        for detail, is_so in (
            ("argmax", int(logits.argmax()[row]) == int(values.argmax())),
            ("top_k", np.array_equal(ids_of_row, order) and np.array_equal(values_of_row, values[order])),
            ("gather", np.array_equal(logits.gather(row, ids), values[ids])),
            ("log_normalizer", abs(logits.log_normalizer(row) - exact) < 1e-6),
            ("row", np.array_equal(logits.row(row), values)),
        ):
            if not is_so:
                raise contract.HANDLE.broken(subject.backend.name, f"{detail} of row {row}")


@BACKEND_CHECKS.add
def vocabulary(subject: BackendSubject) -> None:
    """Narrows to a vocabulary."""
    with closing(subject.load("Q4_0")) as model:
        for kept in (range(40), [0, 31, 32, 70, 100, 101, *range(130, 140), N_VOCAB - 1], [N_VOCAB - 2, N_VOCAB - 1]):
            wanted = np.array(kept, np.int32)
            for n, layers in ((1, None), (5, None), (5, (0, 1))):
                batch = Batch.chain(_tokens(n), layers=layers)
                right = model.forward(batch).rows().copy()
                rows = (passed := model.forward(attrs.evolve(batch, vocabulary=wanted))).rows().copy()
                subject.same(contract.VOCABULARY, rows[:, wanted], right[:, wanted], f"of tokens {list(kept)} alone")
                subject.same(contract.VOCABULARY, rows[rows > -np.inf], right[rows > -np.inf], "beside a vocabulary")
                if len(wanted) > 9:
                    _agree(subject, passed, N_VOCAB)
                    subject.same(contract.HANDLE, passed.first(140).rows(), rows[:, :140], "of the first tokens")
                    _agree(subject, passed.first(140), 140)


@BACKEND_CHECKS.add
def no_numbers(subject: BackendSubject) -> None:
    """Chooses nothing where it computes no numbers."""
    for weight_type in _WEIGHT_TYPES:
        with closing(subject.load(weight_type, output_norm=float("nan"))) as model:
            logits = model.forward(Batch.chain(_tokens(3)))
            if (logits.argmax() != -1).any() or (logits.top_k(np.arange(3, dtype=np.int32), 9)[0] != -1).any():
                raise contract.HANDLE.broken(subject.backend.name, f"a best token where {weight_type} weights give no numbers")


@BACKEND_CHECKS.add
def outside(subject: BackendSubject) -> None:
    """Refuses what does not exist."""
    tokens = _tokens(10)
    with closing(subject.load()) as model:
        whole = model.forward(Batch.chain(tokens)).rows().copy()
        for batch, error in (
            (Batch.chain([1], start=N_CTX), CapacityError),
            (Batch.chain([1], start=-1), CapacityError),
            (Batch.chain([1], slot=2), CapacityError),
            (Batch.chain([N_VOCAB]), OptionError),
            (Batch.chain([-1]), OptionError),
        ):
            detail = f"token {batch.tokens[0]} at position {batch.positions[0]} of slot {batch.slots[0]}"
            _raises(subject, contract.OUTSIDE, error, detail, lambda: model.forward(batch))  # noqa: B023 - called at once
        found = model.forward(Batch.chain(tokens[-1:], start=len(tokens) - 1)).rows()
        subject.same(contract.OUTSIDE, found, whole[-1:], "after passes that were refused")
    model.close()  # once more
    _raises(subject, contract.CLOSED, AuguryError, "a pass after close", lambda: model.forward(Batch.chain([1])))
    _raises(subject, contract.UNSUPPORTED, UnsupportedError, "cache_type_k=q9", lambda: subject.load(cache_type_k="q9"))
    _raises(subject, contract.UNSUPPORTED, UnsupportedError, "cache_type_v=q9", lambda: subject.load(cache_type_v="q9"))


@BACKEND_CHECKS.add
def memory_table(subject: BackendSubject) -> None:
    """Accounts for its memory."""
    n_bytes = []
    for n_ctx in (64, 4096):
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            with closing(subject.load(n_ctx=n_ctx, n_slots=4)) as model:
                held = tracemalloc.get_traced_memory()[0] - before
                n_bytes.append(sum(line.n_bytes for line in model.memory_table()))
                spec = model.state_spec
        finally:
            tracemalloc.stop()
        if held > 1.05 * n_bytes[-1] + _SLACK:
            raise contract.TABLE.broken(subject.backend.name, f"{held} bytes held, {n_bytes[-1]} in the table")
    grown, needed = n_bytes[1] - n_bytes[0], 4 * (4096 - 64) * spec.n_bytes_per_position
    if grown < needed:
        raise contract.TABLE.broken(subject.backend.name, f"{grown} bytes for states that take {needed}")


def _raises(
    subject: BackendSubject, promise: Contract, error: type[Exception], detail: str, call: Callable[[], object]
) -> None:
    with suppress(error), promise.kept(subject.backend.name, f", at {detail}", (error,)):
        call()
        raise promise.broken(subject.backend.name, f"{detail} was taken")


def _tokens(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, N_VOCAB, n).astype(np.int32)


def _joined(batches: Sequence[Batch]) -> Batch:
    tokens = np.concatenate([each.tokens for each in batches])
    return Batch(
        tokens=tokens,
        slots=np.concatenate([each.slots for each in batches]),
        positions=np.concatenate([each.positions for each in batches]),
        rows=np.arange(len(tokens), dtype=np.int32),
    )


def check_backend(
    backend: type[Backend] | str,
    options: Mapping[str, Any] | None = None,
    *,
    tolerance: float | None = None,
    registry: Registry | None = None,
    n_examples: int = 15,
    checks: Iterable[Check] = BACKEND_CHECKS,
) -> None:
    """Prove that a backend keeps its contracts, on a tiny model with weights of several types; see `augury.testing`.

    One that cannot run on this machine is an UnsupportedError. `tolerance` is the mean squared error of its logits as a share
    of their mean square, at most; None for its own. `n_examples` random cuts of texts, and random trees, are tried: fewer for a
    backend that takes minutes for them.
    """
    require_hypothesis()
    registry = registry or registry_with_toys()
    found: type[Backend] = registry.find("backend", backend)
    if (reason := found.unavailable_reason()) is not None:
        raise UnsupportedError(f"backend {found.name} cannot run here: {reason}")
    values = build(found.options_class, options or {}, found.name)
    tolerance = found.tolerance if tolerance is None else tolerance
    subject = BackendSubject(found, values, registry, tolerance, n_examples)
    for check in checks:
        check.run(subject)
