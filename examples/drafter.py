"""A drafter of one's own: the text stays the same, only faster: python examples/drafter.py [MODEL]."""

import sys

from augury import Draft, Drafter, Engine, Registry, hookimpl


class Repeat(Drafter):
    """Expects what followed the last token the last time that it came."""

    name = "repeat"

    def draft(self, history, limit):
        tokens = history.tolist()
        before = [i for i, token in enumerate(tokens[:-1]) if token == tokens[-1]]
        return Draft(tokens[before[-1] + 1 :][: min(limit, 4)]) if before else Draft()


class Plugin:
    """A package offers its drafters by such a hook, see docs/write-a-drafter.md."""

    @hookimpl
    def augury_drafters(self):
        return [Repeat]


model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
registry = Registry.discover()
registry.register(Plugin(), name="example")
texts = []
for spec_type in ("none", "repeat"):
    with Engine.load(model, spec_type=spec_type, registry=registry) as engine:
        result = engine.generate("one two three one two three one two", max_tokens=32, temperature=0)
        print(f"{spec_type}: {result.stats.n_rounds} rounds for {len(result.tokens)} tokens")
        texts.append(result.text)
print("identical:", texts[0] == texts[1])
