"""Let a model choose a function and its argument, call it, and answer: python examples/tools.py [MODEL]."""

import json
import sys

from augury import Engine

CITIES = {"Oslo": "rain, 4 degrees", "Lima": "sun, 19 degrees"}
ARGUMENTS = {"type": "object", "properties": {"city": {"enum": [*CITIES]}}, "required": ["city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": ARGUMENTS}}

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
with Engine.load(model) as engine:
    messages = [{"role": "user", "content": "Do I need an umbrella in Oslo?"}]
    # the schema sees to it that the arguments can be read; augury serve reads calls in each model's own form
    arguments = json.loads(engine.chat(messages, tools=[TOOL], json_schema=ARGUMENTS, max_tokens=64, temperature=0).text)
    found = CITIES[arguments["city"]]
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages += [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": found},
    ]
    print(arguments["city"], found)
    print(engine.chat(messages, tools=[TOOL], max_tokens=48, temperature=0).text)
