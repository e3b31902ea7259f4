"""Longest common endings, and how texts go on after them, by comparing everything with everything."""

from collections import Counter


def agreeing(text, position, depth):
    """How many tokens before `position` are those at the end of `text`."""
    length = 0
    while length < min(depth, position) and text[position - 1 - length] == text[-1 - length]:
        length += 1
    return length


def longest_match(text, depth):
    """The longest ending of `text`, up to `depth`, with a token after it, and the positions of those tokens."""
    lengths = [agreeing(text, position, depth) for position in range(len(text))]
    longest = max(lengths, default=0)
    return longest, [position for position, length in enumerate(lengths) if length == longest and longest]


def way_on(text, start):
    """The tokens of a text from a place on, up to the -1 that ends it."""
    end = text.index(-1, start) if -1 in text[start:] else len(text)
    return text[start:end]


def follow(ways, n_max, min_prob):
    """The most frequent way on, of equals the first: its tokens, and how many of all ways each one follows."""
    path, left = [], ways
    for i in range(n_max):
        counts = Counter(way[i] for way in left if len(way) > i)
        if not counts or max(counts.values()) < min_prob * len(ways):
            break
        best = next(way[i] for way in left if len(way) > i and counts[way[i]] == max(counts.values()))
        path.append((best, counts[best]))
        left = [way for way in left if way[i : i + 1] == [best]]
    return path


def draft_of(ways, lengths, most, min_prob):
    """The way on after endings of these lengths that promises more: of the longest ones, or of all.

    `most` gives the tokens drafted at most after an ending. Returns tokens, each with the length of the ending and all before
    it, and with 2 where all ways on agree, 1 where half of them do, or 0.
    """
    of_longest = [way for way, length in zip(ways, lengths, strict=True) if length == lengths[0]]
    found, length, n = follow(of_longest, most(lengths[0]), min_prob), lengths[0], len(of_longest)
    if lengths[-1] < lengths[0]:
        other = follow(ways, min(most(lengths[-1]), most(lengths[0])), min_prob)
        if sum(count for _, count in other) * n > sum(count for _, count in found) * len(ways):
            found, length, n = other, lengths[-1], len(ways)
    kinds = [(2 if count == n else int(2 * count >= n)) for _, count in found]
    return [(token, length + i, kind) for i, ((token, _), kind) in enumerate(zip(found, kinds, strict=True))]
