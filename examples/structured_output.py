"""Read facts out of a text, as JSON that fits a schema: python examples/structured_output.py [MODEL]."""

import json
import sys

from augury import Engine

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["invoice", "order", "letter"]},
        "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
        "is_paid": {"type": "boolean"},
    },
    "required": ["kind", "year", "is_paid"],
    "additionalProperties": False,
}
TEXT = "Invoice 17 of 3 May 2024, paid in full."

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
with Engine.load(model) as engine:
    messages = [{"role": "user", "content": f"Tell the facts of this text as JSON.\n\n{TEXT}"}]
    facts = json.loads(engine.chat(messages, json_schema=SCHEMA, max_tokens=200, temperature=0).text)
    print(facts["kind"], facts["year"], "paid" if facts["is_paid"] else "open")
