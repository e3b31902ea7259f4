"""What llama.cpp's llama-bench tells of runs, as `-o jsonl` has it."""

import json
from itertools import chain


def runs(words, speed=1000.0):
    """The lines of all runs that words ask for, of which the first repetition is half as fast."""
    given = dict(zip(words[1::2], words[2::2], strict=True))
    prompts = [(int(n), 0) for n in given["-p"].split(",") if int(n)]
    decoded = [(0, int(given["-n"]))] if int(given["-n"]) else []
    return "".join(f"{json.dumps(run(*each, int(given['-d']), speed))}\n" for each in chain(prompts, decoded))


def run(n_prompt, n_gen, n_depth, speed):
    n = n_prompt or n_gen
    samples = [2 * n / speed, n / speed, n / speed, 1.5 * n / speed]
    return {
        "build_commit": "1b1b1b1",
        "build_number": 11434,
        "cpu_info": "a CPU",
        "gpu_info": "a GPU",
        "backends": "CUDA",
        "n_prompt": n_prompt,
        "n_gen": n_gen,
        "n_depth": n_depth,
        "avg_ts": sum(n / each for each in samples) / 4,
        "samples_ns": [round(1e9 * each) for each in samples],
        "samples_ts": [n / each for each in samples],
    }
