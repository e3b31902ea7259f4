"""Answer many prompts at once, each with a seed of its own: python examples/batch.py [MODEL]."""

import sys

from augury import Engine

PROMPTS = [f"{number} times 7 is" for number in range(2, 8)]

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
with Engine.load(model, slots=4) as engine:  # the others wait for a slot
    running = [engine.submit(prompt, max_tokens=12, seed=seed) for seed, prompt in enumerate(PROMPTS)]
    for prompt, each in zip(PROMPTS, running, strict=True):
        print(repr(prompt + each.result().text))
    alone = engine.generate(PROMPTS[3], max_tokens=12, seed=3)
    print("the same alone:", alone.tokens == running[3].result().tokens)  # to the bit
