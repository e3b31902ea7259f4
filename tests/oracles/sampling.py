"""What a token is drawn from, over the whole vocabulary in float64: llama.cpp's samplers as its documentation says them."""

from __future__ import annotations

import numpy as np


def distribution(row, history, params, processors=(), allowed=None) -> dict[int, float]:
    """Token → probability, of those that may be drawn after `history`, from one row (V,) of logits."""
    is_greedy = params.temperature == 0 and "temperature" in params.samplers
    tokens = np.arange(len(row))
    for processor in processors:
        tokens, row = processor(np.array(history, np.int32), tokens, row.copy())
    logits = {
        int(token): float(value) + params.logit_bias.get(int(token), 0.0) for token, value in zip(tokens, row, strict=True)
    }
    if allowed is not None:
        logits = {token: value for token, value in logits.items() if allowed[token]}
    if not any(np.isfinite(value) for value in logits.values()):
        return {}
    for name in params.samplers:
        if name == "penalties" or not is_greedy:
            logits = _STEPS[name](logits, list(history), params)
    if is_greedy:
        logits = dict(_best_first(logits)[:1])
    return {token: p for token, p in _softmax(logits).items() if p > 0}


def _best_first(logits):
    return sorted(logits.items(), key=lambda item: (-item[1], item[0]))


def _softmax(logits):
    largest = max(logits.values())
    weights = {token: float(np.exp(value - largest)) for token, value in logits.items()}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def _penalties(logits, history, params):
    recent = history if params.repeat_last_n < 0 else history[len(history) - min(params.repeat_last_n, len(history)) :]
    changed = dict(logits)
    for token in set(recent) & set(logits):
        value = logits[token]
        value = value * params.repeat_penalty if value <= 0 else value / params.repeat_penalty
        changed[token] = value - recent.count(token) * params.frequency_penalty - params.presence_penalty
    return changed


def _top_k(logits, _, params):
    return dict(_best_first(logits)[: params.top_k or len(logits)])


def _until(mass, ranked, probabilities):
    """The first tokens whose probabilities sum to `mass`."""
    kept, total = [], 0.0
    for token in ranked:
        kept.append(token)
        total += probabilities[token]
        if total >= mass:
            break
    return kept


def _top_p(logits, _, params):
    if params.top_p == 1:
        return logits
    kept = _until(params.top_p, [token for token, _ in _best_first(logits)], _softmax(logits))
    return {token: logits[token] for token in kept}


def _min_p(logits, _, params):
    p = _softmax(logits)
    return {token: value for token, value in logits.items() if p[token] >= params.min_p * max(p.values())}


def _typical(logits, _, params):
    if params.typical_p == 1:
        return logits
    p = _softmax(logits)
    surprise = {token: -np.log(p[token]) if p[token] > 0 else np.inf for token in p}
    entropy = sum(p[token] * surprise[token] for token in p if p[token] > 0)
    ranked = sorted((token for token, _ in _best_first(logits)), key=lambda token: abs(surprise[token] - entropy))
    return {token: logits[token] for token in _until(params.typical_p, ranked, p)}


def _temperature(logits, _, params):
    return {token: value / params.temperature for token, value in logits.items()}


_STEPS = {
    "penalties": _penalties,
    "top_k": _top_k,
    "typ_p": _typical,
    "top_p": _top_p,
    "min_p": _min_p,
    "temperature": _temperature,
}
