"""A small model sorts questions, and a large one answers the hard ones: python examples/several_models.py [SMALL LARGE]."""

import sys

from augury import Engine

small, large = sys.argv[1:3] if len(sys.argv) > 2 else ("smollm2", "qwen2.5-coder-1.5b")
QUESTIONS = ["What is 2 + 2?", "Why is the sky blue?"]

with Engine.load(small) as quick, Engine.load(large) as thorough:
    for question in QUESTIONS:
        messages = [{"role": "user", "content": f"{question}\nIs this question easy or hard?"}]
        kind = quick.chat(messages, choice=["easy", "hard"], temperature=0).text
        engine = quick if kind == "easy" else thorough
        answer = engine.chat([{"role": "user", "content": question}], max_tokens=48, temperature=0)
        print(f"{kind}: {question} {answer.text!r}")
