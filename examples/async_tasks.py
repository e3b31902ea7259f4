"""Many requests in asyncio, without a thread for each: python examples/async_tasks.py [MODEL]."""

import asyncio
import sys

from augury import Engine


async def main(model: str) -> None:
    with Engine.load(model, slots=4) as engine:
        prompts = ["The sea is", "The sky is", "The sun is"]
        answers = await asyncio.gather(*(engine.submit(prompt, max_tokens=16, seed=1) for prompt in prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            print(repr(prompt + answer.text))
        try:
            async with asyncio.timeout(0.05):  # a task that is cancelled ends its request
                await engine.submit("Once upon a time", max_tokens=4000, ignore_eos=True)
        except TimeoutError:
            print("took too long")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "smollm2"))
