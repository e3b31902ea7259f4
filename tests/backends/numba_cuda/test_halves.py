"""Products of halves: near float64, and the same bits for a token alone and among others, up to whole models."""

import attrs
import numpy as np
import pytest
from cuda_simulator.device import SimulatedDevice
from oracles.cuda_products import Product, random_matrix
from oracles.models import tiny_file
from oracles.passes import run_of
from support.head_rig import REGISTRY

from augury.backends.numba_cuda import NumbaCuda, NumbaCudaOptions, products
from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.halves import RowsArgs, halve_rows, norm_halves, slices_of
from augury.backends.numba_cuda.kernels.matmul import ADD, OF_TOKENS
from augury.backends.numba_cuda.kernels.norm import RMS, NormArgs, NormedArgs, norm_rows
from augury.backends.numba_cuda.kernels.quantise import TargetArgs
from augury.backends.numba_cuda.kernels.stream import EMBED_HALVES, HALVED
from augury.backends.numba_cuda.repack import repack_halves
from augury.files.tensor_type import TensorType
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.types import ModelOptions

N_ROWS = 20
TOKENS = np.random.default_rng(1).integers(0, 128, 70).astype(np.int32)
# neighbours of one type, biases, experts and shared ones, heads' matrices, streams, states; models with convolutions have no
# files of these types
FAMILIES = (
    *("llama-dense-q6_k", "qwen2-dense-q4_0", "qwen3moe-moe-q8_0", "qwen2moe-moe-2-of-8-q8_0", "llama4-moe-q8_0"),
    *("deepseek2-moe-q8_0", "deepseek4-moe-q8_0", "gemma4-moe-q8_0", "glm4moe-moe-q8_0", "gpt-oss-moe-mxfp4"),
    "minimax-01-moe-q8_0",
)


def columns_of(name):
    return 512 if TensorType[name].block_size == 256 else 352  # five slices and a half step


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", HALVED)
def test_products_are_near_float64_and_depend_on_no_other_token(name):
    product = Product(SimulatedDevice(), name, 17, N_ROWS, columns_of(name))
    found = product.by_halves(17)
    assert np.sqrt(((found - product.exact) ** 2).mean()) < 1e-3 * np.sqrt((product.exact**2).mean())
    for n in (1, 9) if name in ("Q4_K", "F16") else (3,):
        assert np.array_equal(product.by_halves(n), found[:n])
    assert np.array_equal(product.by_halves(17, mode=ADD), found + found)


def test_tiles_that_a_block_takes_in_turn_have_the_bits_of_tiles_by_themselves(monkeypatch):
    product = Product(SimulatedDevice(), "Q4_0", 3, 5 * 16, 96)
    found = product.by_halves(3).copy()
    monkeypatch.setattr(products, "_BLOCKS_AT_ONCE", 2)
    assert np.array_equal(product.by_halves(3), found)


def test_blocks_of_any_number_of_tokens_and_any_order_of_threads_give_the_same_bits(monkeypatch):
    device = SimulatedDevice()
    product = Product(device, "Q4_0", 70, 3 * 16, 160)
    found = product.by_halves(70).copy()  # 16 at once, as blocks are few
    monkeypatch.setattr(products, "_BLOCKS_ENOUGH", 1)
    assert all(np.array_equal(product.by_halves(n), found[:n]) for n in (1, 30, 70))  # 8, 32 and 64 at once
    device.is_reversed = True
    assert np.array_equal(product.by_halves(70), found)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", HALVED)
def test_weights_are_those_of_the_file_rounded_to_halves(name):
    kind, n_cols, device = TensorType[name], columns_of(name), SimulatedDevice()
    data, right = random_matrix(np.random.default_rng(3), kind, N_ROWS, n_cols)
    words = repack_halves(kind, data.reshape(-1), N_ROWS, n_cols, threads=2)
    arrays = {"inputs": np.array([N_ROWS], np.int32), "w": words, "ids": np.arange(N_ROWS, dtype=np.int32)}
    arrays["x"] = np.zeros((N_ROWS, n_cols), np.float32)
    at = {key: device.allocate(array.nbytes, key) for key, array in arrays.items()}
    for key, array in arrays.items():
        device.write(at[key], array)
    given = {"w": at["w"], "x": at["x"], "ids": at["ids"], "size": n_cols, "n_steps": slices_of(n_cols)[0]}
    device.launch(Launch.of(EMBED_HALVES[name], (1, N_ROWS), WARP, at["inputs"], **given, per_token=1, scale=1.0))
    found = arrays["x"]
    device.read(at["x"], found)
    if name in ("F16", "BF16"):
        assert np.array_equal(found, right)
    else:  # three roundings: of a scale, of a least one, of the weight
        assert np.abs(found - right).max() < 3 * 2.0**-11 * np.abs(right).max()


@pytest.mark.parametrize("largest", [0.0, 1e-38, 3e-3, 65504.0, 3e38, np.inf, np.nan])
def test_rows_of_any_size_become_halves_and_powers(largest):
    device, n_cols, values = SimulatedDevice(), 128, np.zeros((2, 128), np.float32)
    values[:, 5], values[:, 70] = largest, -largest / 3
    at = {"inputs": device.allocate(4 * 2, ""), "x": device.allocate(values.nbytes, "")}
    at |= {name: device.allocate(4 * 8 * n_cols, "") for name in ("halves", "powers")}
    device.write(at["inputs"], np.array([2, 2], np.int32))
    device.write(at["x"], values)
    n_steps, n_of_slice, n_slices = slices_of(n_cols)
    given = {"x": at["x"], "to": RowsArgs(at["halves"], at["powers"], 1), "width": n_cols, "size": n_cols, "n_steps": n_steps}
    given |= {"n_of_slice": n_of_slice, "which": OF_TOKENS, "n_tokens": 2}
    device.launch(Launch.of(halve_rows, (2, 1), WARP * n_slices, at["inputs"], **given))
    halves, powers = np.empty((2, 2, 8, 4, 2, 2, 2), np.float16), np.empty((2, n_slices), np.float32)
    device.read(at["halves"], halves)
    device.read(at["powers"], powers)
    # of steps, units, rows, four columns, halves, pairs, and one of a pair
    found = halves[:, :, :2].transpose(2, 0, 1, 4, 3, 6, 5).reshape(2, 2, 64).astype(np.float64) * powers[..., None]
    if np.isfinite(largest):
        assert np.abs(found.reshape(2, -1) - values).max() <= 2.0**-11 * largest
    else:
        assert not np.isfinite(found[:, 0, 5]).any()


@pytest.mark.parametrize("has_post_norm", [False, True])
def test_a_norm_makes_the_halves_that_are_made_of_its_floats(has_post_norm):
    device, n, n_cols, rng = SimulatedDevice(), 3, 352, np.random.default_rng(7)
    x, y, weight = (rng.standard_normal(shape, np.float32) for shape in ((n, n_cols), (n, n_cols), n_cols))
    arrays = {"inputs": np.array([n, n], np.int32), "x": x, "y": y, "weight": weight, "floats": x, "again": x}
    arrays |= dict.fromkeys(("halves", "other halves"), np.zeros((8, 384), np.float16))
    arrays |= dict.fromkeys(("powers", "other powers"), np.zeros((n, 8), np.float32))
    at = {name: device.allocate(array.nbytes, name) for name, array in arrays.items()}

    def written_by(*launches):
        for name, array in arrays.items():
            device.write(at[name], array)
        for launch in launches:
            device.launch(launch)

    def read(*names):
        found = [np.empty_like(arrays[name]) for name in names]
        for name, array in zip(names, found, strict=True):
            device.read(at[name], array)
        return found

    n_steps, n_of_slice, n_slices = slices_of(n_cols)
    norm, steps = NormArgs(at["weight"], RMS, 1e-6), {"n_steps": n_steps, "n_of_slice": n_of_slice}
    given = {"norm": norm, "params": NormedArgs(at["x"], at["y"], n_cols, n_cols, n_cols, n_cols)}
    given |= {"y_norm": norm} if has_post_norm else {}
    to = TargetArgs(at["floats"], width=n_cols, as_floats=1)
    made = {"x": at["floats"], "to": RowsArgs(at["halves"], at["powers"], 1), "width": n_cols, "size": n_cols, **steps}
    written_by(
        Launch.of(norm_rows, (n,), THREADS, at["inputs"], to=to, **given),
        Launch.of(halve_rows, (8, 1), WARP * n_slices, at["inputs"], which=OF_TOKENS, n_tokens=8, **made),
    )
    right = read("x", "floats", "halves", "powers")
    rows = {"to": RowsArgs(at["other halves"], at["other powers"], 1), "floats": at["again"], "width": n_cols}
    written_by(Launch.of(norm_halves, (n,), THREADS, at["inputs"], n_slices=n_slices, **rows, **steps, **given))
    found = read("x", "again", "other halves", "other powers")
    assert all(np.array_equal(each, wanted) for each, wanted in zip(found, right, strict=True))
    assert found[2].any()


def test_slices_depend_on_columns_alone():
    right = {64: (1, 1, 1), 96: (2, 1, 2), 576: (9, 2, 5), 1536: (24, 4, 6), 4096: (64, 8, 8), 14336: (224, 28, 8)}
    assert {n: slices_of(n) for n in right} == right


def loaded(file, kind, plan=None):
    options = ModelOptions(n_slots=2, n_ctx=96, threads=1)
    plan = plan or plan_of(file, REGISTRY)
    made = make_backend(REGISTRY, kind) if kind == "reference" else NumbaCuda(NumbaCudaOptions(products=kind))
    return made.load(file, plan, options, Progress())


def nats_between(found, right):
    """The mean divergence of tokens' probabilities from the right ones."""
    found, right = (each - np.logaddexp.reduce(each, axis=1, keepdims=True) for each in np.float64([found, right]))
    return (np.exp(right) * (right - found)).sum(axis=1).mean()


def test_a_model_is_at_least_four_times_as_near_the_reference_and_tokens_depend_on_their_past_alone():
    models = {each: loaded(tiny_file("llama-dense-q4_k"), each) for each in ("reference", "bytes", "halves")}
    rows = {name: model.forward(run_of(TOKENS[:6])).rows().copy() for name, model in models.items()}
    of_bytes, of_halves = (nats_between(rows[each], rows["reference"]) for each in ("bytes", "halves"))
    assert 0 < 4 * of_halves < of_bytes
    first = models["halves"].forward(run_of(TOKENS[:1], slot=1)).rows().copy()
    rest = models["halves"].forward(run_of(TOKENS[1:6], slot=1, start=1)).rows()
    assert np.array_equal(np.concatenate([first, rest]), rows["halves"])


@pytest.mark.sample(0, rest=4)
@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_near_the_reference_in_passes_of_any_size(name):
    file = tiny_file(name)
    plan = plan_of(file, REGISTRY)
    right = loaded(file, "reference", plan).forward(run_of(TOKENS[:6])).rows()
    model = loaded(file, "halves", plan)
    found = model.forward(run_of(TOKENS[:6])).rows().copy()
    error = ((found - right) ** 2).sum() / (right**2).sum()
    assert error < NumbaCuda.tolerance
    for cut in (1, 4):
        first = model.forward(run_of(TOKENS[:cut], slot=1)).rows().copy()
        rest = model.forward(run_of(TOKENS[cut:6], slot=1, start=cut)).rows()
        assert np.array_equal(np.concatenate([first, rest]), found)


@pytest.mark.sample(0, rest=1)
def test_a_prompt_in_one_pass_has_the_bits_of_small_ones():
    file = tiny_file("qwen3moe-moe-q8_0")
    plan = plan_of(file, REGISTRY)
    model = loaded(file, "halves", attrs.evolve(plan, layers=plan.layers[:1]))
    whole = model.forward(run_of(TOKENS[:40])).rows().copy()
    for n in (3, 17):
        assert np.array_equal(model.forward(run_of(TOKENS[:n], slot=1)).rows(), whole[:n])


def test_what_a_model_will_hold_is_known_before():
    file, options = tiny_file("llama-dense-q4_k"), ModelOptions(n_slots=2, n_ctx=96, threads=1)
    backend = NumbaCuda(NumbaCudaOptions(products="halves"))
    told = {line.purpose: line.n_bytes for line in backend.memory_needed(file, plan_of(file, REGISTRY), options)}
    held = {line.purpose: line.n_bytes for line in loaded(file, "halves").memory_table()}
    assert 0 <= held["weights"] - told["weights"] < 1 << 17
