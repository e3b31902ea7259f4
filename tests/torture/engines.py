"""Random engines, hostile drafters, clients that cancel: what a request got is the beginning of what plain decoding gives.

Some models have heads or layers for further tokens that are often right, some have adapters, whose scales differ by request.
Prompts begin as others and their answers do, so that slots and the prompt cache have them already.
"""

from __future__ import annotations

import asyncio
import gc
import random
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from attrs import Factory, define
from oracles import adapters
from oracles.drafts import MTP, agreeing, assistance, predictable
from oracles.models import NAMES, RECURRENT, tiny_model
from support.drafter_specs import head_specs
from support.more_toys import registry_with_toys
from torture.hostile import Hostile, Plugins

from augury import AuguryError, Engine
from augury.engine import prompt_cache, prompt_files
from augury.testing.drafter.engines import miscounts
from augury.testing.toys import TINY_DRAFT, TINY_TARGET
from augury.types import CACHE_TYPES

REGISTRY = registry_with_toys()
REGISTRY.register(Plugins(), name="hostile", distribution="torture")
FALLIBLE = ("hostile", "hostile-model")


class MismatchError(AssertionError):
    """An output, or what is told of it, that is not as it must be."""


@define
class Scenario:
    """A model as one backend computes it, and what it says to some requests when it decodes plainly."""

    model: str
    how: dict  # of Engine.load, all that may change what comes out
    asks: list[dict]  # keyword arguments of requests
    drafters: list[str] = Factory(list)  # that only this model has
    answers: list = Factory(list)
    logits: np.ndarray | None = None  # of the first answer

    @classmethod
    def random(cls, rng, model=None):
        kind = rng.choices(["numba-cpu", "toy", "reference"], [8, 2, 1])[0]
        names = {"toy": [TINY_TARGET], "reference": ["llama-dense", "gemma3-dense"], "numba-cpu": [TINY_TARGET, *NAMES]}
        n_ctx = rng.choice([64, 300, 1024]) if kind != "reference" else 96
        if model is not None:
            kind, n_ctx = "numba-cpu", 512
        name = model or rng.choice(names[kind])
        cache = rng.choice([("f16", "f16"), ("f16", "f16"), (rng.choice([*CACHE_TYPES]), rng.choice([*CACHE_TYPES]))])
        how = {"backend": kind, "n_ctx": n_ctx, "cache_type_k": cache[0], "cache_type_v": cache[1]}
        path = name if ":" in name or model else str(tiny_model(name))
        scenario = cls(path, how, [])
        if kind == "numba-cpu" and model is None and rng.random() < 0.5:
            scenario._draft_for_itself(rng)
        n_ctx, n_adapters = how["n_ctx"], len(how.get("lora", ()))
        with scenario.engine(threads=1, spec_type="none") as engine:
            n_most = 384 if model else n_ctx
            for _ in range(4 if model else 8):
                scenario.asks.append(ask := _ask(rng, engine.info.n_vocab, n_ctx, n_most))
                if rng.random() < 0.4 and len(scenario.asks) > 1:
                    scenario._begin_as_another(rng, ask)
                if n_adapters and rng.random() < 0.7:
                    ids = rng.sample(range(n_adapters), rng.randint(0, n_adapters))
                    ask["lora"] = [{"id": i, "scale": rng.choice([1.0, 0.5, -0.3])} for i in ids]
                scenario.answers.append(_answered(rng, engine, ask))
            scenario.logits = engine.evaluate(scenario.text)
        return scenario

    def _draft_for_itself(self, rng):
        """Become a model with heads, with layers for further tokens, or with adapters."""
        kind = rng.choice(["heads", "mtp", "adapters"])
        if kind == "heads":
            name = rng.choice(["llama-dense", "phi2-dense", *RECURRENT])
            self.model, self.drafters = str(predictable(name)), [*head_specs(name).values()]
        elif kind == "mtp":
            name = rng.choice(MTP)
            self.model, self.drafters = str(agreeing(name)), ["draft-mtp"]
            self.how |= assistance(name)
        else:
            name = rng.choice(adapters.MODELS)
            self.model = str(tiny_model(name))
            self.how["n_ctx"] = min(self.how["n_ctx"], 256)  # positions that GPT-2 has learned
            self.how["lora"] = [adapters.adapter(name, number) for number in range(rng.choice([1, 2]))]

    def _begin_as_another(self, rng, ask):
        """Let a request's prompt begin with a part of another's prompt and answer."""
        at = rng.randrange(len(self.answers))
        text = [*self.asks[at]["prompt"], *self.answers[at].tokens]
        prompt = text[: rng.randint(1, len(text))] + ask["prompt"]
        ask["prompt"] = prompt[: max(len(ask["prompt"]), self.how["n_ctx"] - 40)]

    @property
    def text(self):
        """A text to evaluate: the first request's."""
        return (list(self.asks[0]["prompt"]) + list(self.answers[0].tokens))[: self.how["n_ctx"]]

    def engine(self, **how):
        return Engine.load(self.model, registry=REGISTRY, **self.how, **how)

    def check(self, index, tokens, logprobs, result):
        """Hold what a client got against the plain answer; `result` is None where it did not wait for one."""
        plain = self.answers[index]
        n = len(tokens)
        if tuple(tokens) != plain.tokens[:n] or logprobs != [piece.logprob for piece in plain.pieces[:n]]:
            at = next((i for i, (a, b) in enumerate(zip(tokens, plain.tokens, strict=False)) if a != b), "none, or its logprob")
            raise MismatchError(f"request {index} differs from plain decoding at token {at}: {tokens} for {plain.tokens}")
        if result is not None and result.finish_reason != "cancelled" and (n, result.text) != (len(plain.tokens), plain.text):
            raise MismatchError(f"request {index} ended by {result.finish_reason} after {n} tokens of {len(plain.tokens)}")


def _ask(rng, n_vocab, n_ctx, n_most):
    """A random request, whose prompt repeats itself so that drafts are right and wrong."""
    phrases = [[rng.randrange(n_vocab - 1) for _ in range(rng.randint(1, 9))] for _ in range(3)]
    n_prompt = rng.randint(1, n_most // 2) if n_most < n_ctx or rng.random() < 0.8 else rng.choice([1, n_ctx - 1, n_ctx])
    prompt = []
    while len(prompt) < n_prompt:
        prompt += rng.choice(phrases) * rng.randint(1, 3)
    ask = {"prompt": prompt[:n_prompt], "ignore_eos": True, "temperature": 0.0, "logprobs": rng.choice([None, None, 0, 3])}
    if rng.random() < 0.6:
        ask |= {"temperature": rng.choice([0.3, 0.8, 1.3]), "seed": rng.randrange(2**32), "top_k": rng.choice([0, 5, 40])}
        ask |= rng.choice([{}, {"top_p": 0.9}, {"min_p": 0.05}, {"typical_p": 0.8}])
    if rng.random() < 0.3:
        ask |= {
            "repeat_penalty": 1.2,
            "frequency_penalty": 0.2,
            "presence_penalty": 0.1,
            "repeat_last_n": rng.choice([4, 64, -1]),
        }
    if rng.random() < 0.2:
        ask["logit_bias"] = {rng.randrange(n_vocab): rng.choice([-100.0, 3.0]) for _ in range(3)}
    if rng.random() < 0.3:
        values = {"modulus": rng.randint(1, 4), "stretch": rng.choice([0, 3, 9]), "length": rng.choice([0, 0, 20])}
        ask["constraint"] = {"toy-residues": values}
        ask["ignore_eos"] = False  # it may force an end token
    ask["max_tokens"] = rng.randint(1, n_most) if n_most < n_ctx or rng.random() < 0.3 else None
    return ask


def _answered(rng, engine, ask):
    """The plain answer; some requests then get something to stop at that is in it."""
    result = engine.generate(**ask)
    if rng.random() < 0.3:
        at = rng.randrange(len(result.text)) if len(result.text) > 1 else 0
        ask |= {"stop": result.text[at : at + 2]} if at else {"stop_token_ids": [rng.choice(result.tokens)]}
        result = engine.generate(**ask)
    return result


def _member(rng, scenario, *, is_toy):
    """A random drafter with options with which it drafts on short texts."""
    draft = (
        TINY_DRAFT if is_toy or scenario.model == TINY_TARGET else scenario.model if ":" not in scenario.model else TINY_DRAFT
    )
    n, m = rng.randint(1, 4), rng.randint(1, 12)
    if scenario.drafters and rng.random() < 0.7:
        return rng.choice(scenario.drafters)
    return rng.choice(
        [
            f"ngram-simple:n={n},m={m}",
            f"ngram-map-k:n={n},m={m}",
            f"ngram-map-k4v:n={n},m={m}",
            f"ngram-mod:n_match={n},n_min={rng.randint(0, 3)},n_max=8",
            f"ngram-cache:n={n},m={m}",
            f"suffix:max_depth={n + 3},factor=2.0",
            "forced",
            f"self-spec:draft_min=1,draft_max={m}",
            f"self-spec:mode=layers,layers=1,p_min={rng.choice([0, 0.1])}",
            f"draft-model:model={draft}",
            f"draft-model:model={draft},tree={rng.choice(['2x3', '3x2', '1x4'])}",
            *[f"{name}:seed={rng.randrange(10**6)},rate={rng.choice([0, 0.02, 0.2])}" for name in FALLIBLE] * 2,
        ]
    )


def _chain(rng, scenario):
    is_toy = scenario.how["backend"] == "toy"
    chosen = {}
    for _ in range(rng.choice([1, 1, 2, 3])):
        member = _member(rng, scenario, is_toy=is_toy)
        chosen.setdefault(member.partition(":")[0], member)
    return ";".join(chosen.values())


class Clients:
    """Ask one engine for everything at once, from several threads and one asyncio loop."""

    def __init__(self, scenario, engine, rng, counts, *, is_exact):
        self.scenario, self.engine, self.rng, self.counts, self.is_exact = scenario, engine, rng, counts, is_exact
        self.errors = []
        self._lock = threading.Lock()

    def run(self, n_threads, n_each):
        doors = (self._wait, self._iterate, self._drop, self._cancel, self._evaluate, self._several)
        threads = []
        for _ in range(n_threads):
            plan = [(self.rng.choice(doors), self.rng.random()) for _ in range(n_each)]
            threads.append(threading.Thread(target=self._guarded, args=(plan,)))
        plan = [(self._task, self.rng.random()) for _ in range(n_each)]
        threads.append(threading.Thread(target=self._guarded, args=([(self._asyncio, plan)],)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # the watchdog ends what hangs
        if self.errors:
            raise self.errors[0]

    def _guarded(self, plan):
        try:
            for door, chance in plan:
                door(chance)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self.errors.append(error)

    def _params(self, chance):
        """A request, with what changes nothing but how it is drafted for."""
        index = int(chance * 1e6) % len(self.scenario.asks)
        loaded = self.engine.config["speculative"]
        n_max = loaded["n_min"] + int(chance * 100) % 12
        wishes = [None, None, False, {"n_max": n_max}, {"type": loaded["type"].split(";")[-1]}]
        return index, self.scenario.asks[index] | {
            "speculative": wishes[int(chance * 1e4) % len(wishes)],
            "cache_prompt": chance * 1e5 % 1 < 0.7,
        }

    def _check(self, index, pieces, result=None):
        with self._lock:
            self.counts["requests"] += 1
            self.counts["cancels"] += result is None or result.finish_reason == "cancelled"
            self.counts["tokens"] += len(pieces)
        if result is not None and (broken := miscounts(result)):
            raise MismatchError(f"request {index}: {broken}")
        if self.is_exact:
            self.scenario.check(index, [piece.token for piece in pieces], [piece.logprob for piece in pieces], result)

    def _wait(self, chance):
        index, params = self._params(chance)
        result = self.engine.generate(**params)
        self._check(index, result.pieces, result)

    def _several(self, chance):
        index, params = self._params(chance)
        prompt = params.pop("prompt")
        for result in self.engine.generate([prompt, prompt], **params):
            self._check(index, result.pieces, result)

    def _iterate(self, chance):
        index, params = self._params(chance)
        running = self.engine.submit(**params)
        pieces = list(running)
        result = running.result()
        self._check(index, pieces, result)

    def _drop(self, chance):
        index, params = self._params(chance)
        stream, pieces, n = self.engine.stream(**params), [], int(chance * 20)
        while len(pieces) < n and (piece := next(stream, None)) is not None:
            pieces.append(piece)
        del stream
        self._check(index, pieces)

    def _cancel(self, chance):
        index, params = self._params(chance)
        running = self.engine.submit(**params)
        timer = threading.Timer(chance * 0.05, running.cancel)
        timer.start()
        result = running.result()
        timer.join()
        self._check(index, result.pieces, result)

    def _evaluate(self, chance):
        tokens, logits = self.scenario.text, self.scenario.logits
        rows = None if chance < 0.5 else [int(chance * 1e3) % len(tokens), 0]
        found = self.engine.evaluate(tokens, rows)
        self.counts["evaluations"] += 1
        if not np.array_equal(found, logits if rows is None else logits[rows]):
            raise MismatchError("logits of a text differ from those beside plain decoding")

    def _asyncio(self, plan):
        async def together():
            tasks = [asyncio.create_task(door(chance)) for door, chance in plan]
            for task, (_, chance) in zip(tasks, plan, strict=True):
                if chance < 0.3:
                    await asyncio.sleep(chance * 0.05)
                    task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                    raise outcome

        asyncio.run(together())

    async def _task(self, chance):
        index, params = self._params(chance)
        pieces = [piece async for piece in self.engine.astream(**params)]
        self._check(index, pieces)


def run(seed, counts, model=None):
    """One scenario, and several engines that must say the same, and that share files of prompts."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_files, "cache_folder", Path(folder).joinpath)
        patch.setattr(prompt_cache, "_BLOCK", rng.choice([16, 64, 256]))
        _run(rng, counts, model)


def _run(rng, counts, model):
    scenario = Scenario.random(rng, model)
    n_engines = 2 if scenario.how["backend"] == "reference" or model else 4
    for _ in range(n_engines):
        how = {
            "spec_type": _chain(rng, scenario),
            "slots": rng.choice([1, 2, 4, 8]),
            "threads": rng.choice([1, 1, 2, 3]),
            "spec_fixed": rng.random() < 0.7,
            "draft_max": rng.choice([1, 4, 8, 16]),
            "spec_verify": "match" if rng.random() < 0.9 else "rejection",
            "cache_ram": rng.choice([0, 1, 64]),
            "cache_disk": rng.choice([0, 1, 64]),
        }
        how["draft_min"] = rng.choice([0, 0, min(2, how["draft_max"])])
        before = Hostile.n_faults
        try:
            engine = scenario.engine(**how)
            clients = Clients(scenario, engine, rng, counts, is_exact=how["spec_verify"] == "match")
            if rng.random() < 0.1:  # closed while requests run: they end, with what they had or an error that says so
                closer = threading.Timer(rng.random() * 0.2, engine.close)
                closer.start()
                with suppress(AuguryError):
                    clients.run(rng.randint(1, 4), 3)
                closer.join()
            else:
                clients.run(rng.randint(1, 6), 2 if model else 5)
            if rng.random() < 0.9:
                engine.close()
            del engine, clients  # perhaps without having been closed
            gc.collect()
            counts["engines"] += 1
            counts["faults"] += Hostile.n_faults - before
        except BaseException as error:
            error.add_note(f"{scenario.model}, {scenario.how}, {how}")
            raise
