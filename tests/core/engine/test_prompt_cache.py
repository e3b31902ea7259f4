"""The prompt cache: what slots held goes on in any slot, in any process, and nothing is seen of it but that it is quicker."""

import logging
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from oracles.drafts import draft_file, target_of
from oracles.models import tiny_model
from support.more_toys import registry_with_toys

from augury.engine import prompt_cache, prompt_files
from augury.engine.engine import Engine
from augury.errors import ModelFileError, OptionError, UnsupportedError
from augury.testing.toys import TINY_DRAFT, TINY_TARGET

TOYS = ("toy", "toy-recurrent", "toy-recurrent:is_hybrid=true", "toy-recurrent:is_hybrid=true,keeps_aside=false")
HOW = {"ignore_eos": True, "temperature": 0.0, "logprobs": 2}
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8] * 4
EDITED = [*PROMPT[:20], 7, 7, 7]


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(prompt_files, "cache_folder", tmp_path.joinpath)
    monkeypatch.setattr(prompt_cache, "_BLOCK", 16)  # as many as keys lie together: so short texts have several
    return tmp_path


def load(backend="toy", model=TINY_TARGET, **how):
    how = {"cache_ram": 64, "cache_disk": 64, "spec_type": "none", "n_ctx": 128, "threads": 1} | how
    return Engine.load(model, backend=backend, registry=registry_with_toys(), **how)


def answer(engine, text, n=8, **how):
    result = engine.generate(text, max_tokens=n, **HOW | how)
    return [(piece.token, piece.logprob, piece.top_logprobs) for piece in result.pieces]


def n_reused(engine, text, **how):
    return engine.generate(text, max_tokens=4, **HOW | how).stats.n_reused


def told(caplog, text):
    """What the cache says of itself in warnings, which is this text alone."""
    lines = [each.message for each in caplog.records if "prompt" in each.name and each.levelno >= logging.WARNING]
    assert all(text in line for line in lines)
    return lines


def files(folder):
    return sorted(folder.rglob("*.states"))


@pytest.mark.parametrize("backend", TOYS[:3])
def test_conversations_that_take_turns_on_four_slots_read_each_token_once(backend):
    rng, n_read = np.random.default_rng(5), 0
    texts = [[i, *rng.integers(0, 16, 20 + i % 7).tolist()] for i in range(40)]
    n_told = sum(len(text) + 2 * (5 + 1) - 2 * 4 for text in texts)  # an answer's tokens but the last are known from decoding
    with load(backend, slots=4, cache_disk=0) as engine:
        for _ in range(3):
            for i, result in enumerate(engine.generate(texts, max_tokens=5, temperature=0.0, ignore_eos=True)):
                n_read += len(texts[i]) - result.stats.n_reused
                texts[i] = [*texts[i], *result.tokens, 1 + i % 9]
    assert n_read == n_told


events = st.lists(
    st.tuples(
        st.integers(0, 3),  # which conversation
        st.sampled_from(("go on", "edit", "again", "privately", "restart")),
        st.integers(1, 20),  # tokens that are told, or kept of the text
    ),
    min_size=2,
    max_size=9,
)


@pytest.mark.parametrize("backend", TOYS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=events, n_slots=st.integers(1, 3), n_ram=st.sampled_from([1, 64]), drafter=st.sampled_from(["none", "recycle"]))
def test_any_interleaving_gives_the_bits_of_no_cache(backend, events, n_slots, n_ram, drafter):
    how = {"slots": n_slots, "spec_type": drafter, "spec_fixed": True, "n_ctx": 400}
    texts = [[i, *PROMPT[: 9 * i]] for i in range(4)]
    engine = load(backend, cache_ram=n_ram, **how)
    with load(backend, cache_ram=0, cache_disk=0, **how) as plain:
        for which, kind, n in events:
            if kind == "restart":
                engine.close()
                engine = load(backend, cache_ram=n_ram, **how)
            if kind == "edit":
                texts[which] = texts[which][: max(len(texts[which]) - n, 1)]
            if kind == "go on":
                texts[which] += [n] * n
            found = answer(engine, texts[which], cache_prompt=kind != "privately")
            assert found == answer(plain, texts[which], cache_prompt=False)
            texts[which] += [token for token, *_ in found] if len(texts[which]) < 300 else []
    engine.close()


@pytest.mark.sample(3)
@pytest.mark.parametrize("types", [("f16", "f16"), ("q8_0", "q4_0")], ids="-".join)
@pytest.mark.parametrize("model", ["llama-dense", "mamba-dense", "qwen35-dense", "deepseek2-moe", "deepseek4-moe"])
@pytest.mark.parametrize("backend", ["numba-cpu", "reference"])
def test_a_restarted_engine_goes_on_to_the_bit(backend, model, types):
    how = {"cache_type_k": types[0], "cache_type_v": types[1], "backend": backend, "model": tiny_model(model)}
    with load(**how) as engine:
        first = answer(engine, PROMPT)
    text = [*PROMPT, *(token for token, *_ in first), 7]
    with load(**how | {"cache_ram": 0, "cache_disk": 0}) as engine:
        expected = [answer(engine, each, cache_prompt=False) for each in (text, EDITED)]
    with load(slots=2, **how) as engine:
        assert n_reused(engine, text) == len(text) - 2
        assert [answer(engine, each) for each in (text, EDITED)] == expected


@pytest.mark.parametrize("drafter", ["draft-mtp", "draft-model", "suffix"])
@pytest.mark.parametrize("backend", ["toy", "toy-recurrent:is_hybrid=true"])
def test_drafters_draft_on_after_a_restart(backend, drafter):
    how = {"spec_type": drafter, "spec_fixed": True, "draft_model": TINY_DRAFT if drafter == "draft-model" else None}
    with load(backend, **how) as engine:
        first = answer(engine, PROMPT)
    text = [*PROMPT, *(token for token, *_ in first), 7]
    with load(backend, cache_ram=0, **how) as engine:
        plain = engine.generate(text, max_tokens=20, **HOW)
    with load(backend, **how) as engine:
        found = engine.generate(text, max_tokens=20, **HOW)
    assert found.stats.n_reused >= len(PROMPT) - 5
    assert (found.tokens, found.stats.accepted_by_position) == (plain.tokens, plain.stats.accepted_by_position)


# a hidden state that a head takes with the token after it waits for that token at the end of a text, in its slot alone
@pytest.mark.parametrize(("name", "n_waiting"), [("eagle3-llama", 1), ("dflash-qwen3", 0)])
@pytest.mark.parametrize("way", ["memory", "disk", "a slot's file"])
def test_a_head_drafts_as_if_its_slot_had_gone_on(name, n_waiting, way, tmp_path):
    kept = {"memory": {"cache_disk": 0}, "disk": {}, "a slot's file": {"cache_ram": 0}}[way]
    how = {"backend": "reference", "model": tiny_model(target_of(name)), "draft_model": draft_file(name)}
    how |= {"spec_type": f"draft-{name.split('-')[0]}", "spec_fixed": True}

    def going_on(engine):
        result = engine.generate([*text, 7], max_tokens=12, **HOW)
        return result.stats.n_reused, (result.tokens, result.stats.n_drafted, result.stats.accepted_by_position)

    with load(**how | kept) as engine:
        text = [*PROMPT, *engine.generate(PROMPT, max_tokens=9, **HOW).tokens]
        engine.save_slot(0, tmp_path / "saved")
        if way == "memory":
            answer(engine, [9, 9])  # in the only slot
            found = going_on(engine)
    if way != "memory":
        with load(**how | kept) as engine:
            if way == "a slot's file":
                engine.load_slot(0, tmp_path / "saved")
            found = going_on(engine)
    with load(**how | {"cache_ram": 0}) as engine:
        answer(engine, PROMPT, 9)
        assert going_on(engine) == (found[0] + n_waiting, found[1])
    assert found[0] >= len(text) - 2
    assert found[1][1] > 0


@pytest.mark.parametrize("name", ["eagle3-llama", "dflash-qwen3"])
def test_texts_that_part_at_a_block_s_end_or_begin_otherwise_have_their_own_states_of_a_head(name):
    how = {"spec_type": "auto", "draft_model": draft_file(name), "backend": "reference", "model": tiny_model(target_of(name))}

    def states(engine, text):
        answer(engine, text, 2)
        head = engine._context.head_models[0]
        return head.memory.states.save(0, len(head.memory.text(0)))

    texts = [PROMPT[:40], [*PROMPT[:16], 7, *PROMPT[17:40]], [7, *PROMPT[1:40]], PROMPT[:40]]
    with load(**how, cache_disk=0) as engine:
        found = [states(engine, text) for text in texts]
    for text, expected in zip(texts, found, strict=True):
        with load(**how, cache_ram=0) as engine:
            assert states(engine, text) == expected


def damage(data):
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


@pytest.mark.parametrize("change", [damage, lambda data: data[:100], lambda _: b"", lambda data: b"\xff" * len(data)])
@pytest.mark.parametrize("which", [0, -1], ids=["the end", "the beginning"])
@pytest.mark.parametrize("backend", TOYS[:3])
def test_a_damaged_file_is_told_in_a_line_and_computed_again(backend, which, change, folder, caplog):
    with load(backend) as engine:
        text = [*PROMPT, *(token for token, *_ in answer(engine, PROMPT)), 7]
    path = sorted(files(folder), key=lambda path: path.stat().st_mtime)[which]
    path.write_bytes(change(path.read_bytes()))
    with load(backend, cache_ram=0) as engine:
        expected = answer(engine, text)
    with load(backend) as engine:
        assert answer(engine, text) == expected
        assert n_reused(engine, text) >= len(PROMPT) - 5, "it was kept anew"
    assert len(told(caplog, "cannot be used")) == 1


def test_a_file_that_is_gone_when_it_is_read_is_told_to_nobody(folder, monkeypatch, caplog):
    """As when another process has removed it."""
    with load(TOYS[0]) as engine:
        expected = answer(engine, PROMPT)
    read = prompt_files.PromptFiles._read

    def removed(kept, block, n_bytes=-1):
        (kept._folder / block.file_name).unlink(missing_ok=True)
        return read(kept, block, n_bytes)

    monkeypatch.setattr(prompt_files.PromptFiles, "_read", removed)
    with load(TOYS[0]) as engine:
        assert answer(engine, PROMPT) == expected
    assert not told(caplog, "cannot be used")


@pytest.mark.parametrize("fact", ["cache type", "instruction set", "model", "version"])
def test_what_is_foreign_is_not_taken(fact, folder, monkeypatch, caplog):
    how = {"backend": "reference", "model": tiny_model("llama-dense")}
    with load(**how) as engine:
        answer(engine, PROMPT)
    theirs = files(folder)
    if fact == "version":
        monkeypatch.setattr(prompt_files, "version", lambda _: "0.0")
    if fact == "instruction set":
        monkeypatch.setattr("augury.slot_states.SlotStates.isa", "another")
    how |= {"cache type": {"cache_type_k": "f32"}, "model": {"override_kv": {"general.name": "x"}}}.get(fact, {})
    with load(**how, cache_ram=0) as engine:
        expected = answer(engine, PROMPT)
    with load(**how) as engine:
        assert n_reused(engine, PROMPT) == 0
        ours = engine._context.prompt_cache._files._folder
    assert ours != theirs[0].parent
    if fact == "version":  # which is in the folder's name alone
        return
    for path in ours.iterdir():
        path.unlink()
    for path in theirs:  # in the wrong folder they tell whose they are
        path.rename(ours / path.name)
    with load(**how) as engine:
        assert answer(engine, PROMPT) == expected
    assert len(told(caplog, "or of another model")) == 1


@pytest.mark.parametrize(
    ("backend", "model", "is_taken"),
    [("numba-cpu", "llama-dense", True), ("reference", "llama-dense", True), ("reference", "phi3-longrope", False)],
)
def test_another_context_size_takes_what_is_kept_unless_states_depend_on_it(backend, model, is_taken, tmp_path, caplog):
    how = {"backend": backend, "model": tiny_model(model)}
    with load(**how) as engine:
        answer(engine, PROMPT)
        engine.save_slot(0, tmp_path / "saved")
    with load(**how, n_ctx=200, cache_ram=0) as engine:
        expected = answer(engine, PROMPT)
    with load(**how, n_ctx=200) as engine:
        assert n_reused(engine, PROMPT) == is_taken * (len(PROMPT) - 1)
        assert answer(engine, PROMPT) == expected
        if not is_taken:
            with pytest.raises(ModelFileError, match="of another model or backend"):
                engine.load_slot(0, tmp_path / "saved")
    assert not told(caplog, "")


def test_a_full_disk_is_told_once_and_nothing_else_changes(folder, monkeypatch, caplog):
    def fail(*_):
        raise OSError(28, "No space left on device")

    with load(cache_ram=0) as engine:
        expected = [answer(engine, each) for each in (PROMPT, EDITED)]
    monkeypatch.setattr(prompt_files.AtomicFile, "publish", fail)
    with load() as engine:
        assert [answer(engine, each) for each in (PROMPT, EDITED)] == expected
    assert not files(folder)
    assert len(told(caplog, "No space left on device")) == 1


def test_a_folder_that_cannot_be_written_is_told_and_nothing_else_changes(folder, caplog):
    (folder / "prompts").write_text("in the way")
    with load() as engine:
        expected = answer(engine, PROMPT)
        assert n_reused(engine, PROMPT) == len(PROMPT) - 1, "memory has it"
    with load(cache_ram=0) as engine:
        assert answer(engine, PROMPT) == expected
    assert len(told(caplog, "not kept on disk")) == 1


def test_a_process_that_is_killed_as_it_writes_leaves_no_half_of_a_file(folder):
    with load() as engine:
        expected = answer(engine, PROMPT)
    (path, *_) = files(folder)
    writer = f"""
import os
from pathlib import Path
from augury.files.atomic_file import AtomicFile
with AtomicFile(Path({str(path)!r})) as out:
    out.file.write(b"a half")
    out.file.flush()
    os._exit(9)
"""
    path.unlink()
    assert subprocess.run([sys.executable, "-c", writer], check=False).returncode == 9
    assert [*path.parent.glob(".*.part")]
    with load() as engine:
        assert answer(engine, PROMPT) == expected
    assert path in files(folder)
    assert not [*path.parent.glob(".*.part")]


def test_two_servers_that_share_a_folder_go_on_with_each_others_prompts(folder):
    with load() as one, load() as other:
        first = answer(one, PROMPT)
        one.close()
        assert n_reused(other, PROMPT) == len(PROMPT) - 1
        assert answer(other, PROMPT) == first
        for path in files(folder):
            path.unlink()
        assert n_reused(other, [*EDITED, 1]) == 20, "it is in memory still"


@pytest.mark.parametrize("drafter", ["none", "draft-mtp", "draft-model"])
@pytest.mark.parametrize("backend", TOYS[:3])
def test_a_private_request_leaves_nothing_and_finds_nothing(backend, drafter, folder):
    how = {"spec_type": drafter, "draft_model": TINY_DRAFT if drafter == "draft-model" else None, "slots": 2}
    with load(backend, **how) as engine:
        text = [*PROMPT, *(token for token, *_ in answer(engine, PROMPT, cache_prompt=False)), 7]
        assert not any(len(context.memory.text(slot)) for context in engine._loader.contexts for slot in range(2))
        with pytest.raises(OptionError, match="holds no request's text"):
            engine.save_slot(0, folder / "saved")
    assert not files(folder)
    with load(backend, **how) as engine:
        next(iter(running := engine.submit(text, cache_prompt=False, max_tokens=60, **HOW)))
        assert n_reused(engine, text) == 0, "while it runs, too"
        running.result()
        assert n_reused(engine, text, cache_prompt=False) == 0


def test_a_backend_that_cannot_save_slots_goes_on_without(monkeypatch, caplog):
    def save(*_):
        raise UnsupportedError("this one cannot")

    monkeypatch.setattr("augury.slot_states.SlotStates.save", save)
    with load() as engine:
        assert answer(engine, PROMPT) == answer(engine, PROMPT)
    assert len(told(caplog, "no longer kept")) == 1


def test_no_more_is_kept_than_is_said(folder, monkeypatch):
    monkeypatch.setattr(prompt_files, "_MIB", 4000)
    with load(cache_disk=2, n_ctx=256) as engine:
        cache = engine._context.prompt_cache
        cache._n_most = 5000
        for i in range(20):
            answer(engine, [i % 16, *PROMPT, i])
            assert cache._n_held <= 5000
            assert cache._n_held == sum(each.n_bytes for each in cache._blocks.values() if each.data is not None)
    assert 0 < sum(path.stat().st_size for path in files(folder)) <= 8000
    assert oct((folder / "prompts").stat().st_mode)[-3:] == "700"
