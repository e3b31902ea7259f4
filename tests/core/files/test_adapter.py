import gguf
import numpy as np
import pytest
from oracles import adapters
from oracles.models import tiny_file

from augury import Registry
from augury.blocks.adapted import with_adapters
from augury.errors import ModelFileError, UnsupportedError
from augury.files.adapter import Adapter, check_architecture
from augury.loader import plan_of


def write(path, tensors, *, kind="lora", alpha=2.0, **more):
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, tokens in more.items():
        writer.add_array(f"adapter.alora.{name}", tokens)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def pair(name, n_out, n_in, rank=4):
    return {f"{name}.lora_a": (rank, n_in), f"{name}.lora_b": (n_out, rank)}


def test_b_is_scaled_by_alpha_and_rank_and_the_digest_is_of_all_numbers(tmp_path):
    one, other = (Adapter.open(write(tmp_path / f"{alpha}", pair("x", 3, 8), alpha=alpha)) for alpha in (2.0, 0.0))
    (down, up), (_, unscaled) = one.matrices["x"], other.matrices["x"]
    assert (down.shape, up.shape) == ((4, 8), (3, 4))
    assert np.unique(up).tolist() == [0.5]
    assert np.unique(unscaled).tolist() == [1]
    assert one.digest != other.digest


@pytest.mark.parametrize(
    ("tensors", "params", "error", "message"),
    [
        (pair("x", 3, 8), {"kind": "ia3"}, ModelFileError, "adapter/ia3, expected adapter/lora"),
        (pair("x", 3, 8), {"invocation_tokens": [1]}, UnsupportedError, "an aLoRA"),
        ({"x.weight": (3, 8)}, {}, ModelFileError, "tensor 'x.weight', expected names that end in .lora_a or .lora_b"),
        ({"x.lora_a": (4, 8)}, {}, ModelFileError, r"lora_a of 'x' is \(4, 8\) and lora_b missing"),
        ({"x.lora_a": (4, 8), "x.lora_b": (3, 5)}, {}, ModelFileError, r"lora_b \(3, 5\), expected"),
        ({"x_norm.weight": (8,)}, {}, ModelFileError, "holds no matrices, expected pairs that end in .lora_a and .lora_b"),
        *((pair("x", 3, 8), {"alpha": alpha}, ModelFileError, "'x' at alpha .* NaN") for alpha in (np.nan, np.inf)),
    ],
)
def test_a_file_that_is_no_adapter_is_an_error_that_says_why(tmp_path, tensors, params, error, message):
    with pytest.raises(error, match=message):
        Adapter.open(write(tmp_path / "adapter", tensors, **params))


@pytest.mark.parametrize(
    ("name", "shape", "error", "message"),
    [
        ("blk.9.attn_q.weight", (64, 64), ModelFileError, "'blk.9.attn_q.weight', which this model lacks"),
        ("blk.0.attn_q.weight", (64, 32), ModelFileError, r"of shape \(64, 32\), which has shape"),
        (
            "output.weight",
            (128, 64),
            UnsupportedError,
            "adapts 'output.weight', and only .*: no embeddings, outputs or experts",
        ),
    ],
)
def test_an_adapter_that_does_not_fit_the_model_names_the_tensor(tmp_path, name, shape, error, message):
    adapter = Adapter.open(write(tmp_path / "adapter", pair(name, *shape)))
    with pytest.raises(error, match=message):
        with_adapters(plan_of(tiny_file("llama-dense"), Registry.discover()), [adapter])


def test_an_adapter_of_another_architecture_is_refused_and_norms_of_one_are_warned_of(tmp_path, caplog):
    adapter = Adapter.open(write(tmp_path / "adapter", pair("x", 3, 8) | {"blk.0.attn_norm.weight": (8,)}))
    assert [*adapter.matrices] == ["x"]
    assert "an adapter's norm has no effect" in caplog.text
    with pytest.raises(ModelFileError, match="of architecture 'llama', this one's is 'qwen2'"):
        check_architecture([adapter], "qwen2")


def test_matrices_of_experts_are_no_products_that_adapters_take():
    assert all("exps" not in name for name in Adapter.open(adapters.adapter("gpt-oss-moe", 0)).matrices)
