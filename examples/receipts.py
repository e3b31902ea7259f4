"""Prove that a model wrote a text, and find a change: python examples/receipts.py [MODEL]."""

import json
import sys

from augury import Engine

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
with Engine.load(model) as engine:
    result = engine.generate("The sea is", max_tokens=24, seed=7, receipt=True)
    receipt = json.loads(json.dumps(result.receipt.as_json()))  # as a file keeps it
with Engine.load(model, slots=4) as other:  # of anyone who has the model's file; drafts, slots and threads do not matter
    print("equal:", other.verify(receipt).is_equal)
    receipt["tokens"][5] += 1
    print("changed:", other.verify(receipt).reason)
