"""Search texts by their meaning: python examples/search.py [MODEL]; a model for embeddings finds more."""

import sys

from augury import Engine

TEXTS = [
    "The cat sleeps on the sofa.",
    "Shares fell after the report.",
    "Bake the bread for an hour.",
    "Rain is expected tonight.",
]

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
with Engine.load(model, slots=4) as engine:
    index = engine.embed(TEXTS, pooling="mean")  # (n, E), of length 1 each
    scores = index @ engine.embed("What will the weather be like?", pooling="mean")
    for i in (-scores).argsort():
        print(f"{scores[i]:.3f} {TEXTS[i]}")
