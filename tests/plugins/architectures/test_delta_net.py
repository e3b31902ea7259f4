"""DeltaNet: what its logits are compared with is its definition."""

import numpy as np
from oracles import delta_net
from oracles.models import expected, nmse, tiny_file


def test_the_stored_logits_are_those_of_the_definition():
    file, (tokens, logits) = tiny_file("deltanet-dense"), expected("deltanet-dense")
    tensors = {name: each.data.view(np.float32).reshape(each.shape).astype(float) for name, each in file.tensors.items()}
    sizes = {"n_layers": file.metadata["deltanet.block_count"], "n_heads": file.metadata["deltanet.attention.head_count"]}
    right = delta_net.logits(tensors, tokens, **sizes, eps=file.metadata["deltanet.attention.layer_norm_rms_epsilon"])
    assert nmse(logits, right) < 1e-14


def test_a_token_that_was_written_under_a_key_is_read_under_it():
    keys, values = np.eye(3), np.arange(6.0).reshape(3, 2)
    read = delta_net.one_head(keys, keys, values, np.ones(3)) * np.sqrt(3)
    assert np.allclose(read, values, atol=1e-5)
    over = delta_net.one_head(keys[[0, 0]], keys[[0, 0]], values[1:], np.ones(2)) * np.sqrt(3)
    assert np.allclose(over[1], values[2], atol=1e-5)
