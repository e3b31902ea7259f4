"""`draft-mtp`: drafts of the target's own layers, told round by round; and what is computed of a text is computed once."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest
from oracles.drafts import MTP, agreeing, assistance, draft_file, error, parted, runs, target_of
from oracles.models import altered, tiny_file, tiny_model
from support.head_rig import N_CTX, N_VOCAB, REGISTRY, Told

from augury import Engine
from augury.backends.numba_cpu.model import NumbaCpuModel
from augury.backends.reference import Reference
from augury.batch import Batch
from augury.drafters.draft_mtp import DraftMtp
from augury.drafters.model.mtp_runner import MtpRunner
from augury.errors import AuguryError, ModelFileError, OptionError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.files.mtp_file import with_mtp
from augury.interfaces import DrafterTraits, Progress
from augury.loader import Loader, plan_of
from augury.options import NoOptions
from augury.stages import Stage, StagedBackend
from augury.testing.toys import TINY_TARGET, registry_with_toys
from augury.types import Draft, ModelOptions

ASSISTANT = "mtp-gemma4-e"
BACKENDS = ("numba-cpu", "reference")
GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.mark.sample(6)
@pytest.mark.parametrize(("backend", "name"), list(zip(itertools.cycle(BACKENDS), MTP, strict=False)))
def test_drafts_are_those_of_llama_cpp_s_driver_round_by_round(backend, name):
    for run in runs(name):
        found, logits = zip(*Told(name, backend).replayed(run), strict=True)
        assert list(found) == run.drafts.tolist()
        assert error(name, logits, run.logits) < 1e-9


@pytest.mark.parametrize("name", ["mtp-glm4moe", "mtp-qwen35"])
def test_logits_of_drafts_do_not_depend_on_how_the_prompt_was_cut(name):
    run = runs(name)[1]
    whole, cut = (list(Told(name).replayed(run, cuts)) for cuts in ((), (1, 2, 9, 20)))
    for (tokens, logits), (others, other_logits) in zip(whole, cut, strict=True):
        assert tokens == others
        assert np.array_equal(logits, other_logits)


@pytest.mark.parametrize(("name", "chain_rows"), [("mtp-glm4moe", 42), ("mtp-qwen35", 2), (ASSISTANT, 0)])
def test_a_layer_that_feeds_itself_drafts_the_same(name, chain_rows, monkeypatch):
    run, chains, chain = runs(name)[-1], [], NumbaCpuModel.forward_chain
    monkeypatch.setattr(NumbaCpuModel, "forward_chain", lambda model, batch, n: (chains.append(n), chain(model, batch, n))[1])
    found = []
    for rows in (chain_rows, 0):
        told = Told(name)
        assert (told.target.chain_rows > 0) == (name == "mtp-glm4moe"), "nothing of others can be cut back, or is kept"
        told.target.chain_rows = rows
        found.append(list(zip(*told.replayed(run), strict=True)))
    assert list(found[0][0]) == run.drafts.tolist()
    assert np.array_equal(found[0][1], found[1][1])
    assert {*chains} == ({min(run.k, chain_rows)} if chain_rows else set())


def test_slots_are_drafted_for_together_with_the_same_bits():
    told, texts = Told("mtp-glm4moe", n_slots=3), [runs("mtp-glm4moe")[0].text[i : i + 12 + i] for i in range(3)]
    for slot, text in enumerate(texts):
        told.open(slot)
        told.tell(text[:-1], slot=slot)
    alone = [told.runner.draft([told.request(text, 4, slot)])[0] for slot, text in enumerate(texts)]
    told.passes.clear()
    told.target.chain_rows = 0

    together = told.runner.draft([told.request(text, 4 - slot, slot) for slot, text in enumerate(texts)])

    assert [each.tokens for each in together] == [each.tokens[: 4 - slot] for slot, each in enumerate(alone)]
    assert [each.confidence for each in together] == [each.confidence[: 4 - slot] for slot, each in enumerate(alone)]
    assert [n for _, n in told.passes] == [3, 3, 2, 1]  # all was computed but for each one's last token
    told.target.chain_rows = 42
    chained = told.runner.draft([told.request(text, 4 - slot, slot) for slot, text in enumerate(texts)])
    assert [each.tokens for each in chained] == [each.tokens for each in together]
    assert [n for _, n in told.passes[4:]] == [3]


def test_each_token_of_a_text_is_computed_once():
    told, run = Told("mtp-qwen35"), runs("mtp-qwen35")[0]
    told.open()
    for start in range(0, 60, 20):
        told.tell(run.text[start : start + 20])
    assert not told.passes, "hidden states wait until a draft needs them"
    told.runner.begin(0, run.text[:61])
    told.draft(run.text[:61], 3)
    told.tell(run.text[60:61], run.text[61:63], 2)
    told.draft(run.text[:64], 2)
    assert told.passes == [(0, 60), (0, 1), (0, 1), (0, 1), (0, 3), (0, 1)]


def test_nothing_but_keys_and_values_is_computed_of_a_prompt(monkeypatch):
    told, text = Told("mtp-glm4moe"), runs("mtp-glm4moe")[0].text[:30]
    told.target.chain_rows = 0
    forward, batches = told.context.model.forward, []
    monkeypatch.setattr(told.context.model, "forward", lambda batch: batches.append(batch) or forward(batch))
    told.open()
    told.tell(text[:-1])
    told.runner.begin(0, text)
    told.draft(text, 2)
    assert [(len(batch.tokens), len(batch.rows), batch.features) for batch in batches[1:]] == [
        (29, 0, ()),
        (1, 1, ("output",)),
        (1, 1, ("output",)),
    ]


def test_a_text_that_was_given_up_leaves_nothing_to_the_next():
    told, text = Told("mtp-qwen35"), runs("mtp-qwen35")[0].text[:30]
    other = (text + 3) % N_VOCAB
    told.open()
    told.tell(other[:-1])
    told.draft(other, 2)
    told.context.end(0)  # without the drafter's hearing of it, as of one that had not begun
    told.open()
    told.tell(text[:-1])

    fresh = Told("mtp-qwen35")
    fresh.open()
    fresh.tell(text[:-1])
    assert told.draft(text, 3) == fresh.draft(text, 3)
    assert np.array_equal(told.passed.rows(), fresh.passed.rows())


def test_a_long_prompt_is_computed_as_it_goes_on(monkeypatch):
    monkeypatch.setattr("augury.drafters.model.mtp_runner._MOST_PENDING", 64)
    told, tokens = Told("mtp-deepseek2"), np.arange(250, dtype=np.int32) % N_VOCAB
    told.open()
    for start in range(0, 250, 50):
        told.tell(tokens[start : start + 50])
    assert told.passes == [(0, 100), (0, 100)]
    told.runner.begin(0, tokens)
    assert told.passes == [(0, 100), (0, 100), (0, 50)]


@pytest.mark.parametrize("name", ["mtp-qwen35", "mtp-deepseek4"])
def test_confidence_is_among_the_ten_best_and_ends_drafts(name):
    told, text = Told(name), runs(name)[0].text[:20]
    told.open()
    told.tell(text[:-1])
    (written,) = told.runner.draft([told.request(text, 4, n_candidates=3)])

    passed = Told(name)
    passed.open()
    passed.tell(text[:-1])
    passed.draft(text, 1)
    best = np.sort(passed.passed.rows()[-1].astype(np.float64))[::-1][:10]
    expected = np.exp(best - best[0]) / np.exp(best - best[0]).sum()
    assert written.confidence[0] == pytest.approx(expected[0], rel=1e-5)
    assert [p for _, p in written.candidates[0]] == pytest.approx(expected[:3], rel=1e-5)
    n_sure = next((i for i, p in enumerate(written.confidence) if p < written.confidence[0] + 1e-6), 4)
    request = attrs.evolve(told.request(text, 4), p_min=written.confidence[0] + 1e-6)
    assert told.runner.draft([request])[0].tokens == written.tokens[:n_sure]


@pytest.mark.parametrize("name", ["mtp-hy_v3", ASSISTANT])
def test_teacher_forcing_says_what_would_have_been_drafted(name):
    told, text, found = Told(name), runs(name)[0].text[:50], []
    told.open()
    told.tell(text[:33])
    for n in range(33, 49):
        found += told.draft(text[: n + 1], 1)
        told.tell(text[n : n + 1])

    assert told.runner.teacher_forced(0, text, 16).tolist() == found
    late = Told(name)
    late.open()
    late.tell(text[:49])
    assert late.runner.teacher_forced(0, text, 16).tolist() == found


def test_hidden_states_of_long_ago_are_given_up():
    told, tokens = Told("mtp-hy_v3"), np.arange(240, dtype=np.int32) % N_VOCAB
    told.open()
    for n in range(0, 239, 30):
        told.tell(tokens[n : min(n + 30, 239)])
        told.draft(tokens[: min(n + 30, 239) + 1], 1)
    assert len(told.runner._text(0).rows) < 200
    assert told.runner.teacher_forced(0, tokens, 16).min() >= 0
    assert told.runner.teacher_forced(0, tokens, 239).tolist() == [-1] * 239


@pytest.mark.parametrize("how", ["copied", "restored"])
def test_what_comes_from_another_slot_ends_what_a_slot_held_after_it(how):
    told, text = Told("mtp-glm4moe", n_slots=2), runs("mtp-glm4moe")[0].text[:40]
    for slot, tokens in enumerate((np.append(text[:20], (text[20:40] + 1) % N_VOCAB), text)):
        told.open(slot)
        told.tell(tokens, slot=slot)
        told.runner.begin(slot, np.append(tokens, 0))
    states, held = told.context.memory.states, [told.target.n_held("mtp.0", slot, text) for slot in range(2)]
    assert held == [20, 40]
    if how == "copied":
        states.copy(0, 1, 20)  # keys lie in blocks of 16, which are copied whole
    else:
        states.restore(1, states.save(0, 20))
    assert told.target.n_held("mtp.0", 1, text) == 20
    states.restore(1, states.save(0, 0))  # a checkpoint: of no positions
    assert told.target.n_held("mtp.0", 1, text) == 20


N_HELD = {
    "kept": 80,
    "lost": 79,
    "of a shorter text": 79,
    "of another slot": 80,
    "of fewer tokens": 9,
    "of another end": 39,
    "of another text": 0,
}


@pytest.mark.parametrize("name", ["mtp-glm4moe", "mtp-qwen35"])
@pytest.mark.parametrize("how", N_HELD)
def test_of_a_new_text_the_last_hidden_state_is_fed_again_where_it_is_not_kept(name, how):
    text, told = runs(name)[0].text[np.arange(90) % 60], Told(name, n_slots=2)
    before, states = text.copy(), told.context.memory.states
    if how in ("of another end", "of another text"):
        before[40 * (how == "of another end") :] += 1
    before %= N_VOCAB
    told.open()
    told.tell(before[:80])
    told.runner.begin(0, before[:81])
    if how in ("lost", "of a shorter text"):  # the slot's state comes from a file
        told.runner = MtpRunner(told.target, N_CTX, n_vocab=N_VOCAB, n_first=0)
    if how == "of a shorter text":
        told.runner.feed(0, 0, text[:79], {name: rows[:79] for name, rows in told.features_of(text).items()})
    if how == "of another slot":
        states.copy(0, 1, 80)
    if how == "of fewer tokens":  # but hidden states of later ones
        states.restore(0, states.save(0, 10))
    elif how != "of another end":  # as of a request that was given up before it had begun
        told.runner.end(0)
    slot = int(how == "of another slot")
    n = told.runner.n_held(slot, text)
    assert n == N_HELD[how]

    fresh = Told(name)
    fresh.open()
    fresh.tell(text[:89])
    told.runner.feed(slot, n, text[n:89], {name: rows[n:89] for name, rows in fresh.features_of(text).items()})
    assert told.draft(text, 3, slot) == fresh.draft(text, 3)
    assert np.array_equal(told.passed.rows(), fresh.passed.rows())


# Several layers


def with_two(file):
    """The same file with a second layer that predicts further tokens, which is another one."""
    n = int(file.metadata[f"{file.architecture}.block_count"])
    own = {name: tensor for name, tensor in file.tensors.items() if name.startswith(f"blk.{n - 1}.")}
    arrays = {
        name.replace(f"blk.{n - 1}.", f"blk.{n}."): np.flip(tensor.data.view(np.float32).reshape(tensor.shape), axis=0)
        for name, tensor in own.items()
    }
    keys = {f"{file.architecture}.block_count": n + 1, f"{file.architecture}.nextn_predict_layers": 2}
    more = {key: np.append(each, each[-1:]) for key, each in file.metadata.items() if np.size(each) == n and np.ndim(each) == 1}
    return altered(file, metadata=more | keys, arrays=arrays)


def test_of_several_layers_each_drafts_a_token_after_the_draft_before():
    told, text = Told("mtp-glm4moe", change=with_two), runs("mtp-glm4moe")[0].text[:20]
    told.open()
    told.tell(text[:-1])
    assert [part.input for part in told.target.heads.values()] == [("output",)] * 2
    found = told.draft(text, 5)

    fresh = Told("mtp-glm4moe", change=with_two)
    fresh.open()
    fresh.tell(text[:-1])
    hidden = fresh.runner._text(0).before(0, len(text)).copy()

    def computed(layer, tokens, hidden):  # all of it, with nothing kept
        rows, given = np.array([len(tokens) - 1], np.int32), np.ascontiguousarray(hidden)
        how = {"rows": rows, "part": f"mtp.{layer}", "hidden": given, "features": ("output",)}
        passed = fresh.context.model.forward(Batch.chain(tokens, **how))
        return int(passed.argmax()[0]), passed.features("output")[-1:].copy()

    first, made = computed(0, text, hidden)
    second, _ = computed(1, np.append(text, first), np.concatenate([hidden, made]))
    assert found == [first, second]  # and no third layer
    told.tell(text[-1:], [first], 1)
    again = told.draft(np.array([*text, first, 7]), 2)
    assert len(again) == 2
    assert told.passes[-1] == (1, 3)  # the text's last two tokens, and the draft's first


# In an engine


PROMPT = [7, 8, 9, 30, 31] * 8


def drafted(result):
    return [piece.n_drafted for piece in result.pieces], result.stats.draft_lengths, result.tokens


@pytest.mark.parametrize("name", ["mtp-deepseek2", "mtp-qwen35"])
def test_a_text_that_is_taken_up_again_is_drafted_for_as_if_it_were_new(name, tmp_path):
    how = {"spec_type": "draft-mtp", "spec_fixed": True, "draft_max": 3, "backend": "numba-cpu"}
    with Engine.load(agreeing(name), n_ctx=192, threads=1, slots=2, registry=REGISTRY, **how) as engine:
        first = engine.generate(PROMPT, max_tokens=24, **GREEDY)
        longer = [*PROMPT, *first.tokens[:10]]
        second = engine.generate(longer, max_tokens=24, slot=first.stats.slot, **GREEDY)
        engine.save_slot(first.stats.slot, tmp_path / "slot")
        several = engine.generate(longer, n=2, max_tokens=24, **GREEDY)
    with Engine.load(agreeing(name), n_ctx=192, threads=1, registry=REGISTRY, **how) as engine:
        fresh = engine.generate(longer, max_tokens=24, **GREEDY)
        engine.erase_slot(0)
        engine.load_slot(0, tmp_path / "slot")
        restored = engine.generate(longer, max_tokens=24, **GREEDY)
    assert second.stats.n_reused > 20
    assert restored.stats.n_reused > 20
    for result in (second, *several, restored):
        assert drafted(result) == drafted(fresh)
    assert fresh.stats.n_accepted > 0


def test_requests_without_it_in_between_leave_no_holes():
    how = {"spec_type": "draft-mtp", "spec_fixed": True, "draft_max": 3, "backend": "numba-cpu", "slots": 1}
    with Engine.load(agreeing("mtp-deepseek2"), n_ctx=192, threads=1, registry=REGISTRY, **how) as engine:
        plain = engine.generate(PROMPT, max_tokens=24, speculative=False, **GREEDY)
        longer = [*PROMPT, *plain.tokens[:10]]
        after = engine.generate(longer, max_tokens=24, **GREEDY)
        engine.erase_slot(0)
        fresh = engine.generate(longer, max_tokens=24, **GREEDY)
    assert drafted(after) == drafted(fresh)
    assert after.tokens[:14] == plain.tokens[10:]


def test_statistics_tell_what_it_does_with_a_prompt():
    with Engine.load(agreeing("mtp-deepseek2"), n_ctx=192, threads=1, spec_type="draft-mtp", registry=REGISTRY) as engine:
        stats = engine.generate([*range(100)], max_tokens=2, **GREEDY).stats
    assert stats.drafters["draft-mtp"].begin_s > 0
    assert stats.timings.prompt_s > stats.drafters["draft-mtp"].begin_s


def test_auto_uses_the_layers_that_a_file_has():
    for path, chain in ((agreeing("mtp-qwen35"), "suffix;recycle;draft-mtp"), (tiny_model("llama-dense"), "suffix;recycle")):
        with Engine.load(path, n_ctx=64, threads=1, backend="reference", registry=REGISTRY) as engine:
            assert engine.config["spec_type"] == chain


def test_layers_take_memory_only_where_they_are_used():
    n_bytes = {}
    for spec in ("none", "ngram-simple", "mtp"):
        with Engine.load(agreeing("mtp-deepseek2"), n_ctx=64, threads=1, spec_type=spec, registry=REGISTRY) as engine:
            n_bytes[spec] = sum(line.n_bytes for line in engine.memory_table() if "weights" in line.purpose)
    assert n_bytes["none"] == n_bytes["ngram-simple"] < n_bytes["mtp"]


def test_a_target_without_such_layers_is_refused():
    with pytest.raises(UnsupportedError, match=r"draft-mtp: .*it has no layers that predict further tokens; give the file of"):
        Engine.load(tiny_model("llama-dense"), n_ctx=64, threads=1, spec_type="draft-mtp", registry=REGISTRY)


class Wrapping(DraftMtp):
    """Loads `draft-mtp` unasked."""

    name = "wrapping"
    aliases = ()
    traits = DrafterTraits()

    def __init__(self, options, session):
        (self.inner,) = session.drafters("draft-mtp")


def test_a_wrapper_that_does_not_say_that_it_wraps_one_that_uses_such_layers_is_told_to(monkeypatch):
    how = {"n_ctx": 64, "threads": 1, "backend": "reference", "spec_type": "wrapping", "registry": REGISTRY}
    monkeypatch.setitem(REGISTRY.drafters, "wrapping", Wrapping)
    with pytest.raises(
        UnsupportedError, match=r"draft-mtp: .* not loaded, as no drafter in use has .* or names one that has in `wrapped`"
    ):
        Engine.load(agreeing("mtp-qwen35"), **how)
    monkeypatch.setattr(Wrapping, "wrapped", classmethod(lambda cls, options: "draft-mtp"))
    Engine.load(agreeing("mtp-qwen35"), **how).close()


class Plain(Reference):
    name = "plain"
    computes_mtp = False


def of_another_family(_):
    file = tiny_file("dots3note-moe")
    n = file.metadata["dots3note.block_count"]
    by_layer = {key: np.append(each, each[-1:]) for key, each in file.metadata.items() if np.shape(each) == (n,)}
    counts = {"dots3note.block_count": n + 1, "dots3note.nextn_predict_layers": 1}
    return altered(file, metadata=by_layer | counts, arrays={f"blk.{n}.nextn.eh_proj.weight": np.zeros((2, 4))})


def test_it_is_said_why_a_target_has_no_such_layers():
    def lack(change=lambda file: file, backend=None):
        loader, path = Loader(REGISTRY, backend or Reference(NoOptions()), Progress()), draft_file("mtp-qwen35")
        loader._files[str(path)] = change(ModelFile.open(path))
        context = loader.load(path, ModelOptions(1, 64, 1), purpose="target", wants_mtp=True)
        assert not context.info.heads
        return context.lack_of_heads

    missing = "blk.2.nextn.eh_proj.weight"
    found = lack(lambda file: altered(file, without=(missing,)))
    assert f"nextn_predict_layers is 1, but tensor {missing!r} is missing; give the file of these layers" in found
    assert "not supported in architecture 'dots3note'; leave draft-mtp out" in lack(of_another_family)
    found = lack(backend=Plain(NoOptions()))
    assert "not computed by backend plain, expected numba-cpu or " in found
    assert " or reference; use that, or leave draft-mtp out" in found
    found = lack(backend=StagedBackend([Stage(Reference(NoOptions()), 0, 1), Stage(Plain(NoOptions()), 1, 3)]))
    assert "not computed by backend reference on CPU from layer 0 + plain on CPU from layer 1, expected" in found


@pytest.mark.parametrize("name", ["mtp-qwen35", "mtp-step35"])
def test_layers_in_a_file_of_their_own_draft_as_those_in_the_model_s(name):
    model, layers = parted(agreeing(name))
    found = []
    for path, more in ((agreeing(name), {}), (model, {"draft_model": layers})):
        how = {"n_ctx": 192, "threads": 1, "backend": "numba-cpu", "spec_fixed": True, "draft_max": 3, "registry": REGISTRY}
        with Engine.load(path, spec_type="draft-mtp", **how, **more) as engine:
            found.append(drafted(engine.generate(PROMPT, max_tokens=24, **GREEDY)))
    assert found[0] == found[1]
    assert any(found[0][0])


def test_a_file_of_such_layers_is_used_by_auto_and_by_nothing_else():
    (model, layers), how = parted(draft_file("mtp-qwen35")), {"n_ctx": 64, "backend": "reference", "registry": REGISTRY}
    with Engine.load(model, draft_model=layers, **how) as engine:
        assert engine.config["spec_type"] == "suffix;recycle;draft-mtp"
    with pytest.raises(OptionError, match="a draft model is given, but suffix uses none"):
        Engine.load(model, draft_model=layers, spec_type="suffix", **how)
    with pytest.raises(ModelFileError, match=r"none of the model's others; give it as the draft model \(-md"):
        Engine.load(layers, **how)
    other = tiny_model("qwen3-dense")
    with pytest.raises(ModelFileError, match=r"for 2 layers of architecture 'qwen35', but .* has 2 of 'qwen3'; give the file"):
        Engine.load(other, draft_model=layers, **how)


def test_passes_that_do_not_fit_are_refused():
    told = Told("mtp-qwen35")
    told.open()
    good = told.request([1, 2], 1)
    told.tell([1])
    told.runner.draft([good])
    (feed,) = [told.runner._feed(good, [], [], 0)]
    for changes, message in (
        ({"tokens": np.array([999], np.int32)}, "tokens"),
        ({"slot": 5}, "slot 5"),
        ({"hidden": feed.hidden[:, 1:]}, "hidden states"),
        ({"tokens": feed.tokens[:0], "hidden": feed.hidden[:0]}, "some tokens of each slot"),
    ):
        with pytest.raises(OptionError, match=message):
            told.target.forward_part("mtp.0", [attrs.evolve(feed, **changes)])
    with pytest.raises(OptionError, match=r"a pass through part 'mtp\.1' of this target, expected one of mtp\.0"):
        told.target.forward_part("mtp.1", [feed])
    with pytest.raises(OptionError, match="some tokens of each slot, once"):
        told.target.forward_part("mtp.0", [feed, feed])
    with pytest.raises(OptionError, match="2 more passes, expected one row of each slot"):
        told.target.forward_part("mtp.0", [attrs.evolve(feed, n_rows=0)], n_more=2)


def test_it_is_offered_and_drafts_on_the_tiny_model():
    registry = registry_with_toys()
    with Engine.load(TINY_TARGET, backend="toy", spec_type="draft-mtp", n_ctx=64, registry=registry) as engine:
        assert engine.info.heads["mtp.0"].input == ("output",)


# An assistant, which attends to what the target keeps


def test_an_assistant_does_nothing_for_a_prompt_and_keeps_nothing():
    told, text = Told(ASSISTANT), runs(ASSISTANT)[0].text
    told.open()
    told.tell(text[:70])
    told.runner.begin(0, text[:71])
    assert not told.passes
    assert not told.target.heads["assistant"].caches
    told.draft(text[:71], 3)
    assert told.passes == [(0, 1)] * 3
    assert told.context.spec.n_bytes_per_position == plain_spec(ASSISTANT).n_bytes_per_position
    assert not told.draft(text[:1], 3), "nothing is kept that it could attend to"


def plain_spec(name):
    loader = Loader(REGISTRY, Reference(NoOptions()), Progress())
    return loader.load(tiny_model(target_of(name)), ModelOptions(1, 64, 1, "f32", "f32"), purpose="target").spec


def test_an_assistant_forgets_hidden_states_of_long_ago():
    told, tokens = Told(ASSISTANT), np.arange(250, dtype=np.int32) % N_VOCAB
    told.open()
    for start in range(0, 250, 10):
        told.tell(tokens[start : start + 10])
    assert len(told.runner._text(0).rows) < 200
    assert told.runner.teacher_forced(0, tokens, 16).min() >= 0
    assert told.runner.teacher_forced(0, tokens, 249).tolist() == [-1] * 249


def test_an_assistant_sees_accepted_branches_at_their_places():
    text, found = runs(ASSISTANT)[0].text[:24], []
    for parents, path in ((None, [0, 1]), (np.int32([-1, -1, 1, 0]), [1, 2])):
        told = Told(ASSISTANT)
        told.open()
        told.tell(text[:20])
        tokens = text[20:23] if parents is None else np.append(text[20:21], [5, *text[21:23], 9]).astype(np.int32)
        feed = told.context.prepare(0, tokens[:1], 0, Draft(tokens[1:], parents=parents))
        hidden = told.context.forward([feed], ("output",)).features("output").copy()
        told.context.commit(feed, path)
        told.runner.feed(0, 20, text[20:23], {"output": hidden[[0, *(1 + node for node in path)]]})
        told.draft(text[:24], 1)
        found.append(told.passed.rows().copy())
    assert np.array_equal(*found)


def test_what_a_failed_pass_of_an_assistant_may_have_moved_is_not_known(monkeypatch):
    told, text = Told(ASSISTANT), runs(ASSISTANT)[0].text[:24]
    told.open()
    told.tell(text[:20])
    feed = told.context.prepare(0, text[20:21], 0, Draft(np.int32([5, text[21]]), parents=np.int32([-1, -1])))
    hidden = told.context.forward([feed], ("output",)).features("output").copy()
    told.context.commit(feed, [1])
    told.runner.feed(0, 20, text[20:22], {"output": hidden[[0, 2]]})
    with monkeypatch.context() as patch:
        patch.setattr(told.context.model, "forward", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            told.draft(text[:23], 1)
    with pytest.raises(AuguryError, match="what slot 0 holds since is not known"):
        told.context.prepare(0, text[22:23])


def test_an_assistant_is_used_by_auto_and_only_beside_its_target():
    model, how = tiny_model(target_of(ASSISTANT)), {"n_ctx": 64, "backend": "reference", "registry": REGISTRY}
    with Engine.load(model, draft_model=draft_file(ASSISTANT), **how) as engine:
        assert engine.config["spec_type"] == "suffix;recycle;draft-mtp"
    with pytest.raises(ModelFileError, match=r"none of the model's others; give it as the draft model \(-md"):
        Engine.load(draft_file(ASSISTANT), **how)
    with pytest.raises(ModelFileError, match=r"'gemma4-assistant' drafts for another model than .*'qwen3', expected that or"):
        Engine.load(tiny_model("qwen3-dense"), draft_model=draft_file(ASSISTANT), **how)


@pytest.mark.parametrize("target", ["gemma4-dense", "gemma4-moe"])
@pytest.mark.parametrize("way", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 4}])
def test_an_assistant_drafts_for_dense_models_and_mixtures(target, way):
    how = {
        "n_ctx": 128,
        "threads": 1,
        "slots": 2,
        "backend": "numba-cpu",
        "registry": REGISTRY,
        **assistance(ASSISTANT, target),
    }
    asked, found = [PROMPT, [7, 8, 9] * 5, [2] * 9], []
    for options in ({"spec_type": "draft-mtp", "spec_fixed": True, "draft_max": 4}, {"spec_type": "none", "draft_model": None}):
        with Engine.load(agreeing(ASSISTANT, target), **how | options) as engine:
            found.append(engine.generate(asked, max_tokens=40, ignore_eos=True, logprobs=1, **way))
    tokens = [[(piece.token, piece.logprob) for result in results for piece in result.pieces] for results in found]
    assert tokens[0] == tokens[1]
    drafted, accepted = (sum(getattr(each.stats, name) for each in found[0]) for name in ("n_drafted", "n_accepted"))
    assert drafted >= accepted > 0


def test_an_assistant_that_does_not_fit_is_refused():
    target, assistant = tiny_file("gemma4-dense"), ModelFile.open(draft_file(ASSISTANT))
    of_two = {"attention.sliding_window_pattern": [True] * 2, "attention.head_count_kv": [2] * 2}
    local = altered(
        target, metadata={"gemma4.block_count": 2} | {f"gemma4.{key}": np.array(each) for key, each in of_two.items()}
    )
    narrow = altered(assistant, metadata={"gemma4-assistant.embedding_length_out": 128})
    for files, message in (
        ((target, narrow), "is 128, and 128 tokens, expected 256, and 128, as of the model"),
        ((local, assistant), "expected a local and a wide one at the model's end"),
    ):
        with pytest.raises(ModelFileError, match=message):
            plan_of(with_mtp(*files), REGISTRY)
