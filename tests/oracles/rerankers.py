"""A tiny reranker: the Qwen 3 of `models` with a rank head, and a vocabulary of single letters."""

import functools
from string import ascii_letters, digits

import numpy as np
from oracles import models
from oracles.drafts import write_tensors

TEMPLATE = "<q>{query}<d>{document}<a>"
_LETTERS = [*ascii_letters, *digits, *".,:;?!-_{}<>()/'", "Ġ", "Ċ", "qq"]
_CONTROLS = ["<q>", "<d>", "<a>"]
_PADDING = [f"<unused{i}>" for i in range(128 - len(_LETTERS) - len(_CONTROLS))]
_VOCABULARY = {
    "model": "gpt2",
    "pre": "gpt-2",
    "tokens": [*_LETTERS, *_CONTROLS, *_PADDING],
    "token_type": [1] * len(_LETTERS) + [3] * len(_CONTROLS) + [5] * len(_PADDING),
    "merges": ["q q"],
    "eos_token_id": len(_LETTERS) + 2,
}


def reranker(template=TEMPLATE, *, add_eos=False):
    """The path of its GGUF file."""
    random, file = np.random.default_rng(7), models.tiny_file("qwen3-dense")
    metadata = {f"tokenizer.ggml.{key}": value for key, value in _VOCABULARY.items()}
    metadata |= {"qwen3.pooling_type": 4, "tokenizer.ggml.add_eos_token": add_eos}
    metadata |= {} if template is None else {"tokenizer.chat_template.rerank": template}
    head = random.standard_normal((2, file.tensors["token_embd.weight"].shape[1])).astype(np.float32)
    made = models.altered(file, metadata=metadata, without=("tokenizer.ggml.scores",), arrays={"cls.output.weight": head})
    write = functools.partial(write_tensors, made, {*made.tensors}, {})
    return models.written(f"reranker-{template is None}-{add_eos}", write)
