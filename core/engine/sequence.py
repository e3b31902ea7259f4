"""One running request: its history, its emitted tokens, and its end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve

from augury.constraint import ConstraintSession
from augury.engine.channel import Channel
from augury.engine.constraint import ConstraintGuard
from augury.engine.request import Request
from augury.engine.sampler import Sampler
from augury.engine.sampling_step import Breakers, SamplingStep, breakers, infill
from augury.engine.stats import RequestCounter
from augury.errors import AuguryError, LostDeviceError, ModelFileError, OptionError, PluginError, UnsupportedError
from augury.guard import guarded
from augury.interfaces import Session
from augury.passes import Pass
from augury.receipt import Receipt
from augury.sampling import SamplingParams
from augury.speculation.drafter_guard import DraftedSequence
from augury.speculation.verification import Accepted, Match, TargetChoices
from augury.text.text_stream import TextStream
from augury.text.tokenizer import Tokenizer
from augury.types import Draft, Result, Token, TokenLogprob, read_only


class RunningSequence(DraftedSequence):
    """The state of one request. The history is a buffer that only ever grows; a draft lies beyond its end until accepted."""

    def __init__(
        self,
        request: Request,
        channel: Channel,
        *,
        tokenizer: Tokenizer | None,
        n_vocab: int,
        n_ctx: int,
        shared: Callable[[Hashable, Callable[[], Any]], Any],
    ) -> None:
        """Prepare to run; costs no slot yet. `shared` is that of a constraint's session.

        Raises:
            AuguryError: The request's sampling or constraint does not fit the model.
        """
        self.request = request
        self.id, self.speculation = request.id, request.speculation
        self.prompt_owner: RunningSequence | None = None  # the first answer to the same prompt, which this one waits for
        self.channel = channel
        self.tokenizer = tokenizer
        self.slot = -1  # while it waits
        self.n_kept = 0  # tokens whose states the slot holds
        self.n_reused = 0  # of the drafters that were there when its prompt was processed
        self.prompt = request.prompt  # or the rest of a text that was cut, to be processed before the next token
        self.is_prefilling = True
        self.is_full = False  # its context is, and it goes on all the same
        self.pieces: list[Token] = channel.tokens
        self._logprobs: list[float | None] = []  # of these, for a receipt
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.counter: RequestCounter = RequestCounter(request, len(request.prompt))
        eog: frozenset[int] = tokenizer.eog if tokenizer is not None else frozenset()
        forbidden = eog - request.stop_token_ids if request.ignore_eos else frozenset()
        self._end_tokens = (eog | request.stop_token_ids) - forbidden
        self.ends = np.array(sorted(self._end_tokens), np.int32)  # (e,)
        # whether its tokens are all that is told of it, and end it
        self._is_silent = not (request.stop or request.context_shift or request.constraint or request.hidden_states) and (
            request.logprobs is None and request.receipt is None and type(self.speculation.rule) is Match
        )
        self._constraint = None
        self.forced: Callable[[int], Sequence[int]] = lambda _: ()  # at most so many tokens that must follow
        if request.constraint is not None:
            session = ConstraintSession(n_vocab, tokenizer, self._end_tokens, shared)
            self.is_constrained = not self.speculation.rule.depends_on_draft  # drawn tokens are left as they are there
            self._constraint = ConstraintGuard(request.constraint, session, self.speculation.timeout_s)
            self.forced = self._constraint.forced  # drafters keep it, and the sequence shall not be kept by it
        self.sampler = Sampler(
            request.sampling,
            n_vocab=n_vocab,
            forbidden=forbidden if tokenizer is None else forbidden | tokenizer.suppressed,
            late=self._end_tokens,
            n_early=request.min_tokens,
            processors=request.logits_processors,
            constraint=self._constraint,
            breakers=self._breakers(shared),
            infill=self._infill(),
            keeps_drawn=request.post_sampling_probs,
        )
        self._text = TextStream(tokenizer, request.stop)
        self.n_emitted = 0  # tokens
        self._n = len(request.prompt)
        self._buffer = np.empty(n_ctx + 1, np.int32)  # the last token of a full context is emitted, but never stored
        self._buffer[: self._n] = request.prompt
        self._view = self._buffer.view()
        self._view.flags.writeable = False
        self.history = self._view[: self._n]
        if request.emitted is not None:
            self._go_on(request.emitted.tolist())

    def _go_on(self, emitted: Sequence[int]) -> None:
        """Take over the beginning of the answer: its end is processed with the prompt."""
        for token in emitted:
            self._append(token)
            if self.error is not None or self.finish_reason is not None:
                reason = self.error or f"the answer ends by {self.finish_reason} after {self.n_emitted} of them"
                raise OptionError(f"emitted holds {len(emitted)} tokens, with which no answer goes on: {reason}")
            self.history = self._view[: self._n]
            if self.is_full:
                self.shift()
        self.prompt = self.history.copy()
        self.counter = RequestCounter(self.request, len(self.prompt))

    def describe(self, session: Session) -> None:
        session.sampling, session.verify = self.sampler.params, self.speculation.rule.name
        session.forced, session.prediction = self.forced, self.request.prediction
        session.cache_prompt = self.request.cache_prompt

    def _breakers(self, shared: Callable[[Hashable, Callable[[], Any]], Any]) -> Breakers | None:
        """The breakers of the sampler `dry`, made once for the ones that most requests have."""
        sampling, tokenizer = self.request.sampling, self.tokenizer
        if not sampling.dry_multiplier or tokenizer is None:
            return None
        texts = sampling.dry_sequence_breakers
        if texts == SamplingParams().dry_sequence_breakers:
            made: Breakers = shared("dry_sequence_breakers", lambda: breakers(tokenizer, texts))
            return made
        return breakers(tokenizer, texts)

    def _infill(self) -> SamplingStep | None:
        """The sampler of that name; it ends no answer that must go on."""
        request, tokenizer = self.request, self.tokenizer
        if "infill" not in request.sampling.samplers or tokenizer is None:
            return None
        may_end = request.constraint is None and not request.ignore_eos and not request.min_tokens
        return infill(tokenizer, tokenizer.eos if may_end else None)

    @property
    def is_plain_argmax(self) -> bool:
        """Whether the next tokens are simply their rows' argmax."""
        return self.sampler.is_plain_argmax and self.n_emitted >= self.request.min_tokens

    @property
    def may_be_compiled(self) -> bool:
        """Whether compiled rounds may choose its next tokens: the best ones, up to a token that ends the text."""
        return self._is_silent and self.is_drafted and self.is_plain_argmax and not self.is_prefilling

    @property
    def text(self) -> np.ndarray:
        """The text with room for what follows, (n_ctx + 1,) int32; what lies beyond `history` is nobody's."""
        return self._buffer

    @property
    def waits_for_prompt(self) -> bool:
        """Whether its prompt is being processed for another one, from which it can be copied afterwards."""
        prompt_owner = self.prompt_owner
        return prompt_owner is not None and not prompt_owner.n_emitted and prompt_owner.channel.outcome is None

    def shift(self) -> int:
        """Leave out a part of the text after the first `n_keep` tokens; returns how many are where they were."""
        n_ctx, n_keep = len(self._buffer) - 1, self.request.n_keep
        n_same = max(min(len(self.request.prompt) if n_keep < 0 else n_keep, n_ctx - 4), 0)  # llama.cpp's, as is the half
        n_discarded = max(min(self.request.n_discard or (n_ctx - n_same) // 2, n_ctx - n_same - 1), 1)
        self._buffer[n_same : self._n - n_discarded] = self._buffer[n_same + n_discarded : self._n].copy()
        self._n -= n_discarded
        self.history = self._view[: self._n]
        self.prompt, self.is_prefilling, self.is_full = self.history.copy(), True, False
        self.counter.shifted(n_discarded)
        return n_same

    def begin_again(self) -> int:
        """The slot holds nothing any more: the text so far becomes a prompt. Returns how many tokens are where they were: 0."""
        self.prompt, self.is_prefilling, self.waits_for_drafters = self.history.copy(), True, False
        self.counter.n_restarts += 1
        return 0

    @property
    def n_left(self) -> int:
        n_room = len(self._buffer) - self._n
        return n_room if self.request.max_tokens is None else min(n_room, self.request.max_tokens - self.n_emitted)

    def possible(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int] | None:
        if self._constraint is None or not self.is_constrained or not tokens:
            return None
        try:
            nodes = _possible(tokens, parents, self._constraint.n_allowed)
        except (PluginError, UnsupportedError) as error:
            self.fail(error)
            nodes = []
        return None if len(nodes) == len(tokens) else nodes

    def verify(self, draft: Draft, logits: Pass, first_row: int, argmax: Sequence[int]) -> Accepted:
        """The tokens of the round: as much of the draft as the target accepts, and the target's own token after it.

        That token is -1 where its row holds no finite numbers; rows that are not reached do not matter. The draft has fewer
        tokens than `n_left`. The row after the history is `first_row`, the next ones are those after the draft's tokens.
        `argmax`, the best tokens of all rows, may be empty unless `is_plain_argmax`.
        """
        if not len(draft.tokens) and self.is_plain_argmax:
            return Accepted([argmax[first_row]], ())
        sampler, first, is_plain = self.sampler, first_row + 1, self.is_plain_argmax

        def place(node: int, depth: int) -> tuple[Pass, int, np.ndarray, int]:
            """The row after a node, the text up to it, and the index of the token that follows."""
            return logits, first + node, self.text_at(draft, node, depth), self.n_emitted + depth

        target = TargetChoices(
            lambda node, depth: argmax[first + node] if is_plain else sampler.choose(*place(node, depth)),
            lambda node, depth: sampler.distribution(*place(node, depth)),
            lambda depth: sampler.uniforms(self.n_emitted + depth),
            is_plain,
            sampler.follows_text,
        )
        return self.speculation.rule.accept(draft, target)

    def chance(self, place: int) -> float:
        return self.sampler.uniforms(self.n_emitted + place)[0]

    def text_at(self, draft: Draft, node: int, depth: int) -> np.ndarray:
        """The text up to a node of a draft, whose ancestors were asked for before: drafted tokens lie beyond the history."""
        n = self._n + depth
        if draft.parents is None:
            self._buffer[self._n : n] = draft.tokens[:depth]
        elif node >= 0:
            self._buffer[n - 1] = draft.tokens[node]
        return self._view[:n]

    def emit(self, accepted: Accepted, logits: Pass, first_row: int, drafters: Sequence[str]) -> int:
        """Append a round's tokens, up to where the request ends, and deliver them.

        The history's row of the pass is `first_row`; `drafters` (k,) names the drafter of each of the draft's tokens.

        Returns:
            How many were emitted; the last of them counts as the target's own. 0 where the request failed before the first.
        """
        pieces: list[Token] = []
        tokens, path, self.is_prefilling = accepted.tokens, accepted.path, False
        for i, token in enumerate(tokens):
            if token < 0:
                odd = f"the model's logits after {self._n} tokens are not finite numbers"
                message = f"{odd}; its weights are probably damaged, fetch the file again"
                self.fail(self.sampler.error or ModelFileError(message))
                break
            text, is_end = self._append(token), self.finish_reason is not None
            origin = None if is_end or i == len(path) or tokens[i + 1] < 0 else drafters[path[i]]
            pieces.append(Token(token, text, origin, None if i else len(drafters)))  # of the round, with its first token
            if is_end:
                break
        self.history = self._view[: self._n]
        n_top, has_receipt = self.request.logprobs, self.request.receipt is not None
        if n_top is not None or has_receipt:
            try:
                told = self._with_logprobs(pieces, n_top or 0, logits, [first_row, *[first_row + 1 + node for node in path]])
            except LostDeviceError as error:  # the tokens are in the text, so the round cannot be repeated
                raise AuguryError(f"log-probabilities are lost: {error}; ask again") from error
            self._logprobs += [piece.logprob for piece in told if has_receipt]
            pieces = pieces if n_top is None else told
        self.pieces += pieces  # the channel's
        if self.channel.readers:
            self.channel.wake_readers()
        return len(pieces)

    def _append(self, token: int) -> str:
        """Add a token, and see whether the text ends: by a stop, by a constraint that lets nothing follow, or at a limit.

        Returns:
            The text that is certain by then.
        """
        self._buffer[self._n] = token
        self._n, self.n_emitted = self._n + 1, self.n_emitted + 1
        may_stop = self.n_emitted > self.request.min_tokens
        text = self._text.push(token, may_stop=may_stop)
        is_complete = self._text.is_stopped or token in self._end_tokens
        if not is_complete and self._constraint is not None:
            try:
                self._constraint.follow(self._view[: self._n], self.n_emitted)
            except (PluginError, UnsupportedError) as error:
                self.fail(error)
            is_complete = self._constraint.n_complete == self.n_emitted
        if is_complete:
            self.finish_reason = "stop"
        elif self.n_emitted == self.request.max_tokens and self.error is None:
            self.finish_reason = "length"
        elif self._n == len(self._buffer) and self.error is None:
            if self.request.context_shift:
                self.is_full = True
            else:
                self.finish_reason = "context"
        return text if self.finish_reason is None else text + self._text.flush(may_stop=may_stop)

    def _with_logprobs(self, pieces: Sequence[Token], n_top: int, logits: Pass, rows: Sequence[int]) -> list[Token]:
        """The tokens of a round with `logprob`, `bytes` and `top_logprobs`."""
        if self.request.post_sampling_probs:
            return [self._with_drawn(piece, n_top, self.n_emitted - len(pieces) + i) for i, piece in enumerate(pieces)]
        found, rows = list[Token](), rows[: len(pieces)]
        best = logits.top_k(np.array(rows, np.int32), n_top)
        for piece, row, ids, values in zip(pieces, rows, *best, strict=True):
            normalizer = logits.log_normalizer(row)
            logprob = float(logits.gather(row, np.array([piece.token], np.int32))[0]) - normalizer
            top = zip(ids.tolist(), values.tolist(), strict=True)
            alternatives = tuple(TokenLogprob(each, x - normalizer, self.bytes_of(each)) for each, x in top)
            found.append(evolve(piece, logprob=logprob, bytes=self.bytes_of(piece.token), top_logprobs=alternatives))
        return found

    def _with_drawn(self, piece: Token, n_top: int, index: int) -> Token:
        """The same of a token's distribution, which holds it at least."""
        token = piece.token
        ids, probabilities = self.sampler.drawn_from.pop(index, (np.array([token]), np.ones(1)))
        with np.errstate(divide="ignore"):
            logprobs = dict(zip(ids.tolist(), np.log(probabilities).tolist(), strict=True))
        best = [TokenLogprob(each, x, self.bytes_of(each)) for each, x in logprobs.items() if x > -np.inf]
        logprob, alternatives = logprobs.get(token, -np.inf), tuple(best[:n_top])
        return evolve(piece, logprob=logprob, bytes=self.bytes_of(token), top_logprobs=alternatives)

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes of a token by itself; None without a tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.piece(token)

    def tell_hidden_states(self, start: int, tokens: np.ndarray, states: Mapping[str, np.ndarray]) -> None:
        """Hand the caller what it asked for of the states (m, F) by name of tokens (m,) int32 in the text from `start` on."""
        if (told := self.request.on_hidden_states) is not None:
            wanted = {name: read_only(states[name].copy()) for name in self.request.hidden_states}
            guarded(told, start, read_only(tokens), wanted)

    def fail(self, error: Exception) -> None:
        """End this request alone with an error, which its caller is told instead of a result."""
        self.error = error
        self.finish_reason = "error"

    def finish(self, error: BaseException | None = None) -> None:
        """Tell the caller that it is over, with the result or the error, its own before a round's."""
        try:
            outcome = self.error or error or self.result()
        except BaseException as found:  # noqa: BLE001 - the caller must hear of the end in any case
            outcome = found
        self.channel.finish(outcome)

    def result(self) -> Result:
        """The result of the request."""
        finish_reason, request = self.finish_reason or "cancelled", self.request
        return Result(
            tokens=tuple(piece.token for piece in self.pieces),
            text="".join(piece.text for piece in self.pieces),
            finish_reason=finish_reason,
            stats=self.counter.summary(),
            pieces=tuple(self.pieces),
            prompt=tuple(request.prompt.tolist()) if request.echo else None,
            prompt_text=request.prompt_text,
            receipt=self._receipt(finish_reason),
        )

    def _receipt(self, finish_reason: str) -> Receipt | None:
        request = self.request
        if (facts := request.receipt) is None:
            return None
        known = {**facts, "params": {**facts["params"], "seed": request.sampling.seed}}
        tokens = [piece.token for piece in self.pieces]
        made = Receipt(**known, prompt=request.prompt.tolist(), tokens=tokens, finish_reason=finish_reason)
        return evolve(made, digest=made.digest_with(self._logprobs))


def _possible(tokens: Sequence[int], parents: Sequence[int], n_allowed: Callable[[list[int]], int]) -> list[int]:
    """The tokens of a draft, by their places, that are allowed after those before them."""
    if all(parent == i - 1 for i, parent in enumerate(parents)):
        return list(range(n_allowed(list(tokens))))
    paths: list[list[int] | None] = []  # to each token; None where it, or one on the way, is not allowed
    for token, parent in zip(tokens, parents, strict=True):
        before = paths[parent] if parent >= 0 else []
        path = None if before is None else [*before, token]
        paths.append(path if path is not None and n_allowed(path) == len(path) else None)
    return [node for node, path in enumerate(paths) if path is not None]
