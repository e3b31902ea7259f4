"""ngram-mod as llama.cpp defines it: a dict, hashes by the formula, and everything learnt anew after a reset."""

N_ENTRIES = 4 * 1024 * 1024


def entry_of(ngram):
    digest = 0
    for token in ngram:
        digest = (digest * 6364136223846793005 + token) % 2**64
    return digest % N_ENTRIES


class NaiveNgramMod:
    """One slot; `pool` is shared by those that are given the same dict."""

    def __init__(self, n, n_min, n_max, pool):
        self.n, self.n_min, self.n_max, self.pool = n, n_min, n_max, pool
        self.n_learnt = self.n_poor = self.n_drafted = 0

    def learn(self, text):
        for i in range(self.n_learnt, len(text) - self.n):
            self.pool[entry_of(text[i : i + self.n])] = text[i + self.n]
        self.n_learnt = len(text) - self.n

    def begin(self, prompt):
        self.n_learnt = self.n_drafted = 0
        if len(prompt) >= self.n:
            self.learn(prompt)

    def draft(self, history):
        text = history[:-1]
        self.n_drafted = 0
        if len(text) < self.n:
            return []
        if self.n_learnt + 32 < len(text):
            self.learn(text)
        tokens = history[-self.n :]
        while len(tokens) < self.n + self.n_max:
            token = self.pool.get(entry_of(tokens[-self.n :]))
            if token is None:
                if len(tokens) - self.n < self.n_min:
                    return []
                break
            tokens = [*tokens, token]
        self.n_drafted = len(tokens) - self.n
        return tokens[self.n :]

    def accept(self, n_accepted):
        if self.n_drafted:
            self.n_poor = self.n_poor + 1 if n_accepted / self.n_drafted < 0.25 else 0
            if self.n_poor == 5:
                self.pool.clear()
                self.n_poor = self.n_learnt = 0
