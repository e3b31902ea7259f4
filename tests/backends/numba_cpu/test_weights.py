"""What loading a model takes of the machine's memory, in a process of its own."""

import json
import subprocess
import sys

import gguf
import numpy as np
import pytest
from oracles import weights

from augury.files.gguf_writer import LlamaSizes, gguf_file
from augury.files.tensor_type import TensorType

E, F, LAYERS, VOCABULARY = 2048, 5632, 3, 8192
# A first model of the same types brings in what every process needs once: the compiled kernels.
SCRIPT = """
import gc, json, sys
sys.path[:0] = sys.argv[3:]
import numpy as np
from oracles.passes import run_of
from augury.backends.numba_cpu import NumbaCpu, NumbaCpuOptions
from augury.files.gguf import ModelFile
from augury.interfaces import Progress
from augury.plugins.architectures.llama import Llama
from augury.types import ModelOptions
def resident():
    lines = (line.split() for line in open("/proc/self/status"))
    return {words[0]: 1024 * int(words[1]) for words in lines if words[0] in ("RssAnon:", "RssFile:")}
def load(path):
    file = ModelFile.open(path)
    backend = NumbaCpu(NumbaCpuOptions(keep_weights=False))
    model = backend.load(file, Llama.plans(file)["main"], ModelOptions(n_ctx=256, threads=2), Progress())
    file.close()
    return model
small = load(sys.argv[1])
before = resident()
large = load(sys.argv[2])
gc.collect()
loaded = resident()
large.forward(run_of([1, 2, 3]))
print(json.dumps([before, loaded, resident(), {line.purpose: line.n_bytes for line in large.memory_table()}]))
"""


def write_model(path, n_layers, n_vocab):
    """A llama model of random blocks whose output matrix is its embedding."""
    rng = np.random.default_rng(1)
    sizes = LlamaSizes(n_vocab, E, F, n_heads=16, n_kv_heads=4, head_dim=E // 16, n_rot=E // 16, n_layers=n_layers, n_ctx=256)
    with gguf_file(path) as writer:
        sizes.describe(writer)
        for name, shape in sizes.shapes.items():
            if len(shape) == 1:
                writer.add_tensor(name, np.ones(shape, np.float32))
            else:
                kind = TensorType.Q6_K if name == "token_embd.weight" else TensorType.Q4_K
                source = weights.random_blocks(rng, kind, *shape).reshape(shape[0], -1)
                writer.add_tensor(name, source, raw_dtype=gguf.GGMLQuantizationType[kind.name])


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    small, large = folder / "small.gguf", folder / "large.gguf"
    write_model(small, 1, 32)
    write_model(large, LAYERS, VOCABULARY)
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, small, large, *sys.path], stdout=subprocess.PIPE, check=True, timeout=600
    )
    n_bytes = large.stat().st_size
    large.unlink()
    return n_bytes, *json.loads(ended.stdout)


def test_a_loaded_model_takes_little_more_than_its_file_and_its_cache(told):
    n_bytes, before, loaded, used, table = told
    limit = 1.15 * n_bytes + table["KV cache"]
    assert loaded["RssAnon:"] - before["RssAnon:"] < limit
    assert used["RssAnon:"] - before["RssAnon:"] < limit


def test_a_shared_embedding_is_held_once(told):
    n_bytes, before, loaded, _, table = told
    assert 0.97 * n_bytes < table["weights"] < 1.03 * n_bytes
    assert loaded["RssAnon:"] - before["RssAnon:"] > 0.9 * n_bytes  # what is measured is the weights


def test_the_file_is_released(told):
    n_bytes, before, loaded, _, _ = told
    assert loaded["RssFile:"] - before["RssFile:"] < 0.02 * n_bytes
