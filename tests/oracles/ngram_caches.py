"""ngram-cache by its definition: everything is counted anew for every token of a draft."""

from collections import Counter

LAX = {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}
STRICT = {1: (4, 75), 2: (3, 66), 3: (2, 66), 4: (2, 66)}


def followers(texts, ngram):
    """How often each token followed `ngram`; `texts` are (tokens, index of the first that counts as a follower)."""
    n = len(ngram)
    counts = Counter()
    for tokens, first in texts:
        for i in range(max(first, n), len(tokens)):
            if tokens[i - n : i] == ngram:
                counts[tokens[i]] += 1
    return counts


def clear(counts, votes, least, percent):
    """The token with the most counts times votes, of equals the lowest, if it is clear enough."""
    if counts.total() < least:
        return None
    token = max(sorted(counts), key=lambda each: counts[each] * (100 * votes[each] if each in votes else 1))
    return token if 100 * counts[token] >= percent * counts.total() else None


def draft(text, past, corpus, n_max, limit):
    """What is drafted after `text`, whose counts are not those of the draft itself."""
    drafted = []
    while len(drafted) < limit:
        token = next_token(text, drafted, past, corpus, n_max)
        if token is None:
            break
        drafted.append(token)
    return drafted


def next_token(text, drafted, past, corpus, n_max):
    ahead = text + drafted
    votes = followers([(corpus, 0)], ahead[-2:]) if len(ahead) >= 2 else Counter()
    for texts, thresholds in (([(text, 0)], LAX), (past, STRICT)):
        for n in range(min(n_max, len(ahead)), 0, -1):
            token = clear(followers(texts, ahead[-n:]), votes, *thresholds[n])
            if token is not None:
                return token
    return clear(votes, Counter(), *LAX[2])
