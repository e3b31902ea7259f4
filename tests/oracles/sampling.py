"""What a token is drawn from, over the whole vocabulary in float64: llama.cpp's samplers as its documentation says them."""

from __future__ import annotations

import numpy as np


def distribution(row, history, params, processors=(), allowed=None, *, breakers=None, chance=1.0) -> dict[int, float]:
    """Token → probability, of those that may be drawn after `history`, from one row (V,) of logits.

    `breakers` are those of dry, by token; `chance` is the number in [0, 1) by which xtc decides.
    """
    is_greedy = params.temperature == 0 and params.dynatemp_range == 0 and "temperature" in params.samplers
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
        if name == "dry":
            logits = _dry(logits, list(history), params, breakers or {})
        elif name == "xtc" and not is_greedy:
            logits = _xtc(logits, params, chance)
        elif name == "penalties" or not is_greedy:
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


def _dry(logits, history, params, breakers):
    n_last = len(history) if params.dry_penalty_last_n < 0 else params.dry_penalty_last_n
    text = history[-n_last:] if n_last else []
    if not params.dry_multiplier or len(text) <= params.dry_allowed_length:
        return logits
    limit = len(text)
    for i in range(len(text)):  # from the end
        ways = [tail for tail in breakers.get(text[-1 - i], ()) if list(tail) == text[len(text) - i :][: len(tail)]]
        if ways:
            limit = i - max(map(len, ways))
            break
    if limit < params.dry_allowed_length:
        return logits
    longest = {}
    for end in range(len(text) - 1):  # of an earlier occurrence of the text's end
        n = 0
        while n <= end and text[end - n] == text[-1 - n]:
            n += 1
        n, following = min(n, limit), text[end + 1]
        if n >= params.dry_allowed_length:
            longest[following] = max(longest.get(following, 0), n)
    most = int(88.7228391 / np.log(params.dry_base)) if params.dry_base > 1.000001 else len(text)
    changed = dict(logits)
    for token, n in longest.items():
        if token in changed and () not in breakers.get(token, ()):
            changed[token] -= params.dry_multiplier * params.dry_base ** min(n - params.dry_allowed_length, most)
    return changed


def _top_n_sigma(logits, _, params):
    if params.top_n_sigma <= 0:
        return logits
    finite = np.array([value for value in logits.values() if value > -np.inf])
    return {token: value for token, value in logits.items() if value >= finite.max() - params.top_n_sigma * finite.std()}


def _xtc(logits, params, chance):
    if params.xtc_probability == 0 or params.xtc_threshold > 0.5 or chance > params.xtc_probability:
        return logits
    p = _softmax(logits)
    above = [token for token, value in _best_first(logits) if p[token] >= params.xtc_threshold and value > -np.inf]
    return {token: value for token, value in logits.items() if token not in above[:-1]}


def _temperature(logits, _, params):
    heat = params.temperature
    if params.dynatemp_range > 0:
        n = sum(value > -np.inf for value in logits.values())
        if n < 2:
            return logits
        entropy = -sum(p * np.log(p) for p in _softmax(logits).values() if p > 0)
        least, most = max(heat - params.dynatemp_range, 0), heat + params.dynatemp_range
        heat = least + (most - least) * max(entropy / np.log(n), 0) ** params.dynatemp_exponent
        if heat == 0:
            return dict(_best_first(logits)[:1])
    return {token: value / heat for token, value in logits.items()}


def mirostat(row, mu, params) -> dict[int, float]:
    """The same by Mirostat, which allows a surprise of `mu` bits."""
    logits = _best_first({token: float(value) / params.temperature for token, value in enumerate(row)})
    p = _softmax(dict(logits))
    if params.mirostat == 2:
        kept = [token for token, _ in logits if -np.log2(p[token]) <= mu] or [logits[0][0]]
    else:
        t = [np.log((i + 2) / (i + 1)) for i in range(min(99, len(row) - 1))]
        b = [np.log(p[logits[i][0]] / p[logits[i + 1][0]]) for i in range(len(t))]
        s = sum(x * y for x, y in zip(t, b, strict=True)) / sum(x * x for x in t)
        k = (((s - 1) * 2**mu) / (1 - len(row) ** -(s - 1))) ** (1 / s)
        kept = [token for token, _ in logits[: max(int(k), 1)]]
    return _softmax({token: value for token, value in logits if token in kept})


_STEPS = {
    "penalties": _penalties,
    "top_n_sigma": _top_n_sigma,
    "top_k": _top_k,
    "typ_p": _typical,
    "top_p": _top_p,
    "min_p": _min_p,
    "temperature": _temperature,
}
