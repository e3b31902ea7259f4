"""The n-gram maps as llama.cpp defines them, by scans: slow, and close to the letter of the definition."""

N_ENTRIES = 1 << 18
MAX_COUNT = 16380


def entry_of(ngram):
    digest = 0
    for token in ngram:
        digest = (digest * 2654435761 + token) % 2**32
    return digest % N_ENTRIES


class NaiveNgramMap:
    """`min_hits` None: ngram-map-k; else ngram-map-k4v."""

    def __init__(self, n, m, min_hits=None):
        self.n, self.m, self.min_hits = n, m, min_hits
        self.begin([])

    def begin(self, prompt):
        self.n_prompt = len(prompt)
        self.table = {}
        self.last = 0
        self.keys = {}
        self.drafted = None

    def draft(self, text):
        *text, sampled = text
        n, m = self.n, self.m
        self.drafted = None
        if len(text) < 2 * n + m:
            return []
        key = [*text, sampled][-n:]
        start = self.find(text, key)
        if not start:
            return []
        facts = self.keys.setdefault(tuple(key), {"found": 0, "counted_to": 0, "values": [[None, 0, m]]})
        facts["found"] = min(facts["found"] + 1, MAX_COUNT)
        if self.min_hits is None:
            self.drafted = facts["values"][0]
        else:
            if facts["found"] < self.min_hits:
                return []
            self.drafted = self.leader(text, key, start, facts)
        if self.drafted is None:
            return []
        return text[start + n : start + n + self.drafted[2]]

    def find(self, text, key):
        n, m = self.n, self.m
        end = len(text) - n - m - 1
        of_prompt = range(self.n_prompt - n - m - 1, self.last, -1)
        of_output = range(end, max(self.n_prompt, self.last), -1)
        start = self.table.get(entry_of(key), 0)
        if not (start and start < end and text[start : start + n] == key):
            start = next((i for part in (of_prompt, of_output) for i in part if text[i : i + n] == key), 0)
        for part in (of_prompt, of_output):
            for i in part:
                self.table.setdefault(entry_of(text[i : i + n]), i)
        self.last = max(self.last, end)
        return start

    def leader(self, text, key, start, facts):
        n, m = self.n, self.m
        values = [value for value in facts["values"] if value[0] is not None]
        for i in range(facts["counted_to"], start + 1):
            if text[i : i + n] == key:
                after = text[i + n : i + n + m]
                value = next((value for value in values if value[0] == after), None)
                if value is None and len(values) < 4:
                    value = [after, 0, m]
                    values.append(value)
                if value is not None:
                    value[1] = min(value[1] + 1, MAX_COUNT)
        facts["counted_to"], facts["values"] = start, values
        best = max(values, key=lambda value: value[1])
        others = sum(value[1] for value in values) - best[1]
        return None if best[1] < 2 * others else best

    def accept(self, n_accepted):
        if self.drafted is not None:
            self.drafted[2] = n_accepted


def simple_draft(text, n, m):
    """What ngram-simple drafts as the definition has it: a scan backwards through everything before the sampled token."""
    *before, _ = text
    key = text[-n:]
    if len(before) <= n + m + 1:
        return []
    for start in range(len(before) - n - 1, 0, -1):
        if before[start : start + n] == key:
            draft = before[start + n : start + n + m]
            return draft if len(draft) >= n else []
    return []
