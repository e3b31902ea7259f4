"""Talk with a model: python examples/chat.py [MODEL]."""

import sys

from augury import Engine

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
messages = [{"role": "system", "content": "Answer in one sentence."}]
with Engine.load(model) as engine:
    for line in sys.stdin:  # end with Ctrl-D
        messages.append({"role": "user", "content": line.strip()})
        answer = ""
        for piece in engine.stream(messages=messages, max_tokens=64, seed=1):
            print(piece.text, end="", flush=True)
            answer += piece.text
        print()
        messages.append({"role": "assistant", "content": answer})
