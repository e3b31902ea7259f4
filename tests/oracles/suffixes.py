"""Longest common endings, by comparing everything with everything."""


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
