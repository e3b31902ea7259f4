import gc
import subprocess
import sys
import threading
import time
import weakref
from contextlib import closing

import attrs
import gguf
import numpy as np
import pytest
from oracles.drafts import MTP, draft_file, target_of
from oracles.models import FLOAT_NAMES, NAMES, QUANTISED_NAMES, expected, nmse, tiny_file, tiny_model
from oracles.passes import joined, run_of

from augury import Engine, Registry
from augury.backends.numba_cpu import NumbaCpu, backend, tape, weights
from augury.backends.numba_cpu.kernels import team as offsets
from augury.backends.numba_cpu.lowering import Lowering
from augury.backends.reference import Reference
from augury.batch import Batch
from augury.errors import AuguryError, CapacityError, OptionError
from augury.files.gguf import ModelFile
from augury.files.gguf_writer import LlamaSizes, gguf_file
from augury.interfaces import Model, Progress
from augury.loader import plan_of
from augury.plugins.architectures.gemma import Gemma3
from augury.plugins.architectures.llama import Llama, Qwen2, Qwen3
from augury.types import ModelOptions

ARCHITECTURES = {architecture.name: architecture for architecture in (Gemma3, Llama, Qwen2, Qwen3)}
REGISTRY = Registry.discover()
FLOAT_LIMIT = 1e-9
QUANTISED_LIMIT = 2e-4  # both sides round activations to int8, in blocks of different size
ROUNDING_LIMIT = 1e-3  # against the reference, which does not round activations: a percent per product, squared, times depth
COARSE_LIMIT = 1e-2  # for types of 2 and 3 bits


def load(file, backend=NumbaCpu, progress=None, **options):
    plan = ARCHITECTURES[file.architecture].plans(file)["main"]
    given = {"n_ctx": 1024, "n_slots": 2, "threads": 2, **options}
    return backend(backend.options_class()).load(file, plan, ModelOptions(**given), progress or Progress())


@pytest.fixture(scope="module")
def models():
    """Models by name and options, loaded once for all tests of this file."""
    loaded = {}

    def get(name, **options):
        key = (name, *sorted(options.items()))
        if key not in loaded:
            loaded[key] = load(tiny_file(name), **options)
        return loaded[key]

    yield get
    for model in loaded.values():
        model.close()


def token_by_token(model, tokens, slot=0):
    return np.concatenate([model.forward(run_of([token], slot=slot, start=i)).rows().copy() for i, token in enumerate(tokens)])


def in_chunks(model, tokens, sizes, slot=0):
    logits, start = [], 0
    for size in sizes:
        logits.append(model.forward(run_of(tokens[start : start + size], slot=slot, start=start)).rows().copy())
        start += size
    return np.concatenate(logits)


def some_tokens(n, seed=7):
    return np.random.default_rng(seed).integers(0, 128, n).astype(np.int32)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", FLOAT_NAMES)
def test_float_models_give_the_logits_of_llama_cpp(models, name):
    tokens, right = expected(name)

    logits = models(name, cache_type_k="f32", cache_type_v="f32").forward(run_of(tokens)).rows()

    assert logits.dtype == np.float32
    assert nmse(logits, right) < FLOAT_LIMIT


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", QUANTISED_NAMES)
def test_quantised_models_are_near_llama_cpp(models, name):
    tokens, right = expected(name)

    logits = models(name).forward(run_of(tokens)).rows()

    assert nmse(logits, right) < (COARSE_LIMIT if name.endswith(("q2_k", "q3_k")) else QUANTISED_LIMIT)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", NAMES)
def test_a_tokens_logits_do_not_depend_on_how_the_prompt_is_cut(models, name):
    tokens = some_tokens(96)
    model = models(name)
    alone = token_by_token(model, tokens)

    for sizes in ([96], [2] * 48, [3, 1, 64, 28], [8] * 12, [32, 64]):
        assert np.array_equal(in_chunks(model, tokens, sizes), alone)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", NAMES)
def test_a_tokens_logits_do_not_depend_on_the_number_of_threads(models, name):
    tokens = some_tokens(40)
    together = in_chunks(models(name), tokens, [1, 2, 5, 32])

    for threads in (1, 3):
        model = load(tiny_file(name), threads=threads)
        assert np.array_equal(in_chunks(model, tokens, [1, 2, 5, 32]), together)
        model.close()


@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense", "llama-dense-q4_k", "llama-dense-q4_0"])
def test_passes_longer_than_the_buffers_are_cut_without_a_trace(models, name):
    tokens = some_tokens(700)
    model = models(name)
    whole = model.forward(run_of(tokens)).rows().copy()

    assert np.array_equal(in_chunks(model, tokens, [333, 200, 167]), whole)
    assert np.array_equal(in_chunks(model, tokens[:300], [1] * 300), whole[:300])


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", NAMES)
def test_slots_do_not_disturb_each_other(models, name):
    model = models(name)
    first, second = some_tokens(9, seed=1), some_tokens(5, seed=2)
    alone = token_by_token(model, first, slot=0), token_by_token(model, second, slot=1)

    both = model.forward(joined(run_of(second, slot=1), run_of(first, slot=0))).rows().copy()

    assert np.array_equal(both, np.concatenate([alone[1], alone[0]]))


def test_tokens_of_several_slots_may_be_mixed_in_passes_of_any_length(models):
    model = models("llama-dense")
    first, second = some_tokens(400, seed=1), some_tokens(400, seed=2)
    alone = [model.forward(run_of(tokens, slot=slot)).rows().copy() for slot, tokens in enumerate((first, second))]
    tokens, slots = np.stack([first, second], 1).reshape(-1), np.tile(np.int32([0, 1]), 400)
    batch = type(run_of([1]))(tokens, slots, np.repeat(np.arange(400, dtype=np.int32), 2), np.arange(800, dtype=np.int32))

    mixed = model.forward(batch).rows()

    assert np.array_equal(mixed[0::2], alone[0])
    assert np.array_equal(mixed[1::2], alone[1])


def test_only_the_wanted_rows_are_computed(models):
    model, tokens = models("qwen2-dense"), some_tokens(20)
    whole = model.forward(run_of(tokens)).rows().copy()

    assert np.array_equal(model.forward(run_of(tokens, rows=[3, 7, 19])).rows(), whole[[3, 7, 19]])
    assert model.forward(run_of(tokens, rows=[])).rows().shape == (0, 128)


def test_what_was_stored_is_overwritten_by_a_later_pass(models):
    model, tokens = models("gemma3-dense"), some_tokens(30)
    right = in_chunks(model, tokens, [20, 10])
    model.forward(run_of(tokens[:20]))
    model.forward(run_of(some_tokens(10, seed=3), start=20))

    assert np.array_equal(model.forward(run_of(tokens[20:], start=20)).rows(), right[20:])


def write_odd_model(path, *, kind, **sizes):
    """A llama model of awkward shapes."""
    rng = np.random.default_rng(5)
    odd = LlamaSizes(**{"n_vocab": 77, "n_layers": 2, "n_ctx": 256} | sizes)
    with gguf_file(path) as writer:
        odd.describe(writer)
        for name, shape in odd.shapes.items():
            values = (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)
            if len(shape) == 1:
                writer.add_tensor(name, np.float32(1) + np.float32(0.2) * rng.standard_normal(shape).astype(np.float32))
            else:
                writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


F32, Q8_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0
ODD_SHAPES = {
    "odd head size": {"n_embd": 36, "n_heads": 3, "n_kv_heads": 1, "head_dim": 12, "n_ff": 50, "n_rot": 12, "kind": F32},
    "partial rope": {"n_embd": 40, "n_heads": 4, "n_kv_heads": 2, "head_dim": 22, "n_ff": 33, "n_rot": 10, "kind": F32},
    "five values of 16": {"n_embd": 96, "n_heads": 7, "n_kv_heads": 7, "head_dim": 80, "n_ff": 70, "n_rot": 80, "kind": F32},
    "32 columns": {"n_embd": 96, "n_heads": 4, "n_kv_heads": 1, "head_dim": 72, "n_ff": 160, "n_rot": 72, "kind": Q8_0},
    "seven heads a group": {"n_embd": 64, "n_heads": 14, "n_kv_heads": 2, "head_dim": 40, "n_ff": 64, "n_rot": 40, "kind": F32},
    "large heads": {"n_embd": 64, "n_heads": 10, "n_kv_heads": 2, "head_dim": 256, "n_ff": 64, "n_rot": 256, "kind": Q8_0},
}


@pytest.mark.parametrize("shape", ODD_SHAPES)
def test_awkward_shapes_are_right_and_do_not_depend_on_the_pass(shape, tmp_path):
    write_odd_model(tmp_path / "odd.gguf", **ODD_SHAPES[shape])
    file, tokens = ModelFile.open(tmp_path / "odd.gguf"), some_tokens(40) % 77
    exact = {"cache_type_k": "f32", "cache_type_v": "f32"}
    model, oracle = load(file, **exact), load(file, Reference, **exact)

    logits = model.forward(run_of(tokens)).rows().copy()

    limit = 1e-10 if ODD_SHAPES[shape]["kind"] is F32 else ROUNDING_LIMIT
    assert nmse(logits, oracle.forward(run_of(tokens)).rows()) < limit
    assert np.array_equal(token_by_token(model, tokens), logits)
    model.close()


def assert_long_contexts_do_not_depend_on_the_pass(model, tokens):
    """Attention over several chunks, cut by rows or by chunks: the same bits for every token."""
    whole = model.forward(run_of(tokens)).rows().copy()
    sizes = [1] * 6 + [2, 3, 4, 5, 6, 7, 8, 11, 16, 27, 32, 50, 64]
    start = len(tokens) - sum(sizes)
    for size in sizes:
        again = model.forward(run_of(tokens[start : start + size], start=start)).rows()
        assert np.array_equal(again, whole[start : start + size])
        start += size

    other = (tokens + 1) % 77
    whole_other = model.forward(run_of(other, slot=1)).rows().copy()
    for first, second in ((1, 1), (3, 9), (40, 1)):  # tokens of slots whose contexts differ in length
        parts = (slice(len(tokens) - first, None), slice(530, 530 + second))
        mixed = joined(run_of(tokens[parts[0]], start=parts[0].start), run_of(other[parts[1]], slot=1, start=parts[1].start))
        assert np.array_equal(model.forward(mixed).rows(), np.concatenate([whole[parts[0]], whole_other[parts[1]]]))
    return whole


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", ["gemma3-dense", "llama-dense"])
def test_long_contexts_do_not_depend_on_the_pass(models, name, threads):
    tokens = some_tokens(1000) % 77
    whole = assert_long_contexts_do_not_depend_on_the_pass(models(name, threads=threads), tokens)

    assert np.array_equal(whole, models(name).forward(run_of(tokens)).rows())


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", ["odd head size", "seven heads a group", "large heads"])
def test_long_contexts_of_awkward_shapes_do_not_depend_on_the_pass(shape, tmp_path):
    write_odd_model(tmp_path / "odd.gguf", **ODD_SHAPES[shape])
    file, tokens = ModelFile.open(tmp_path / "odd.gguf"), some_tokens(1000) % 77
    model, oracle = load(file), load(file, Reference)

    whole = assert_long_contexts_do_not_depend_on_the_pass(model, tokens)

    right = oracle.forward(run_of(tokens, rows=[255, 256, 777, 999])).rows()
    assert nmse(whole[[255, 256, 777, 999]], right) < (1e-6 if ODD_SHAPES[shape]["kind"] is F32 else ROUNDING_LIMIT)
    model.close()


def test_long_windows_and_contexts_agree_with_the_reference(models):
    tokens = some_tokens(600)
    right = load(tiny_file("gemma3-dense"), Reference).forward(run_of(tokens, rows=[0, 299, 511, 599])).rows()

    assert (
        nmse(models("gemma3-dense").forward(run_of(tokens, rows=[0, 299, 511, 599])).rows(), right) < 1e-6
    )  # f16 keys, values


def test_two_models_live_side_by_side(models):
    tokens = some_tokens(12)
    names = ("llama-dense-q4_k", "qwen3-dense")
    alone = [token_by_token(models(name), tokens) for name in names]

    for i, token in enumerate(tokens):
        for name, logits in zip(names, alone, strict=True):
            assert np.array_equal(models(name).forward(run_of([token], start=i)).rows()[0], logits[i])


def test_an_idle_model_takes_no_cpu_time(models):
    models("llama-dense").forward(run_of([1, 2, 3]))
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.5)

    assert time.process_time() - before < 0.05


def test_more_threads_than_cores_finish(models):
    model = load(tiny_file("llama-dense"), threads=9)

    assert np.array_equal(in_chunks(model, some_tokens(20), [1] * 20), in_chunks(models("llama-dense"), some_tokens(20), [20]))
    model.close()


def test_threads_end_with_the_model_closed_or_collected():
    before = threading.active_count()
    closed, dropped = load(tiny_file("llama-dense")), load(tiny_file("llama-dense"))
    assert threading.active_count() == before + 2

    closed.close()
    closed.close()
    gone = weakref.ref(dropped)
    del dropped
    gc.collect()

    assert gone() is None
    assert threading.active_count() == before
    with pytest.raises(AuguryError, match="closed"):
        closed.forward(run_of([1]))


def test_a_process_that_forgets_its_model_ends(tmp_path):
    script = tmp_path / "forgets.py"
    script.write_text(
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from oracles.models import tiny_file\n"
        "from oracles.passes import run_of\n"
        "from augury.backends.numba_cpu import NumbaCpu, NumbaCpuOptions, backend\n"
        "from augury.interfaces import Progress\n"
        "from augury.plugins.architectures.llama import Llama\n"
        "from augury.types import ModelOptions\n"
        "file = tiny_file('llama-dense')\n"
        "plan, options = Llama.plans(file)['main'], ModelOptions(threads=3, n_ctx=64)\n"
        "model = NumbaCpu(NumbaCpuOptions()).load(file, plan, options, Progress())\n"
        "print(*model.forward(run_of([1, 2, 3])).rows().shape)\n"
    )

    ended = subprocess.run([sys.executable, script, *sys.path], capture_output=True, text=True, check=False, timeout=600)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3 128\n", "")


def test_no_kernel_is_loaded_while_decoding_not_even_for_the_first_accepted_branch(tmp_path):
    script = tmp_path / "decodes.py"
    script.write_text(
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from oracles.models import tiny_model\n"
        "from augury import Engine\n"
        "from augury.backends.numba_cpu.kernels import jit\n"
        "from augury.backends.numba_cpu.lowering import Lowering\n"
        "loaded, moved = [], []\n"
        "jit.require_address_space = lambda *_: loaded.append(_)\n"
        "moving = Lowering.moving\n"
        "Lowering.moving = lambda self, moves: moved.append(len(moves)) or moving(self, moves)\n"
        "options = {'threads': 1, 'n_ctx': 256, 'spec_type': 'recycle', 'spec_fixed': True}\n"
        "with Engine.load(tiny_model('llama-dense'), backend='numba-cpu', **options) as engine:\n"
        "    at_start = len(loaded)\n"
        "    engine.generate([1, 2, 3], max_tokens=100, temperature=0.0)\n"
        "print(at_start > 0, len(moved) > 0, len(loaded) - at_start)\n"
    )

    ended = subprocess.run([sys.executable, script, *sys.path], capture_output=True, text=True, check=False, timeout=600)

    assert (ended.returncode, ended.stdout) == (0, "True True 0\n"), ended.stderr


@pytest.mark.parametrize("name", ["eagle3-qwen3-d2t", "eagle3-llama"])
@pytest.mark.parametrize("vocabulary", [None, np.int32([1, 5, 40, 41, 77])])
def test_a_head_that_feeds_itself_gives_what_it_is_fed_one_by_one(name, vocabulary):
    file, rng = ModelFile.open(draft_file(name)), np.random.default_rng(2)
    file.borrow_from(tiny_file(target_of(name)))
    options = ModelOptions(n_ctx=64, n_slots=2, threads=2)
    with closing(NumbaCpu(NumbaCpu.options_class()).load(file, plan_of(file, REGISTRY), options, Progress())) as model:
        hidden, tokens = rng.normal(size=(5, model.info.n_embd)).astype(np.float32), rng.integers(0, 128, 5)
        parts = [Batch.chain(tokens[:3], slot=1), Batch.chain(tokens[3:])]
        output = f"layer.{model.info.n_layers - 1}"
        batch = attrs.evolve(joined(*parts), rows=np.int32([2, 4]), hidden=hidden, features=(output,), vocabulary=vocabulary)
        right = Model.forward_chain(model, batch, 6)
        rows, made, best = right.rows().copy(), right.features(output).copy(), right.argmax()
        kept = [each.copy() for each in model.slot_memory(0, 8)]
        found = model.forward_chain(batch, 6)
        assert np.array_equal(found.rows(), rows)
        assert np.array_equal(found.argmax(), best)
        assert np.array_equal(found.features(output), made)
        assert len(set(best.tolist())) > 1
        assert all(map(np.array_equal, model.slot_memory(0, 8), kept))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_chain_gives_what_its_passes_give_one_by_one_in_whatever_order_slots_come(models, order):
    model, n_passes = models("llama-dense"), 40
    texts = [some_tokens(9), some_tokens(4, seed=3)]
    batch = joined(*[Batch.chain(texts[slot], slot=slot, rows=np.int32([len(texts[slot]) - 1])) for slot in order])
    found = model.forward_chain(batch, n_passes)
    rows, best, normalizers = found.rows().copy(), found.argmax(), [found.log_normalizer(i) for i in range(2 * n_passes)]
    for n in range(n_passes):
        passed = model.forward(batch)
        assert np.array_equal(passed.rows(), rows[2 * n : 2 * n + 2])
        assert [passed.log_normalizer(i) for i in range(2)] == normalizers[2 * n : 2 * n + 2]
        parts = zip(order, best[2 * n : 2 * n + 2], strict=True)
        batch = joined(*[Batch.chain([token], slot=slot, start=len(texts[slot]) + n) for slot, token in parts])


@pytest.mark.parametrize("name", ["eagle3-llama", "dflash2-qwen3", "dspark-qwen3", "mtp-qwen35"])
def test_all_kernels_of_a_heads_prompts_and_rounds_are_loaded_with_it(name, monkeypatch):
    loaded, used = set(), set()
    prepare, record_of = weights.prepare, tape.record_of
    monkeypatch.setattr(weights, "prepare", lambda kernels, told: loaded.update(kernels) or prepare(kernels, told))
    monkeypatch.setattr(tape, "record_of", lambda kernel, **fields: used.add(kernel) or record_of(kernel, **fields))
    head = {} if name in MTP else {"draft_model": draft_file(name)}
    target = draft_file(name) if name in MTP else tiny_model(target_of(name))
    with Engine.load(target, backend="numba-cpu", threads=1, n_ctx=512, spec_fixed=True, **head) as engine:
        stats = engine.generate(list(range(1, 100)) * 3, max_tokens=20, temperature=0.0).stats
    assert stats.n_drafted > 0
    assert used <= loaded


def test_only_the_tapes_of_passes_that_are_computed_are_written(monkeypatch):
    model, sizes = load(tiny_file("llama-dense")), []
    write = Lowering._program
    monkeypatch.setattr(
        Lowering,
        "_program",
        lambda self, space, *ends, **how: sizes.append(space.is_private) or write(self, space, *ends, **how),
    )
    for n in (3, 8, 1, 2, 3):
        model.forward(Batch.chain(np.arange(n, dtype=np.int32), features=("layer.1",)))
    model.close()
    assert sizes == [False, True]


def test_an_interrupted_pass_leaves_the_model_usable(models, monkeypatch):
    model, tokens = load(tiny_file("llama-dense"), threads=3), some_tokens(6)

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(offsets, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.forward(run_of(tokens))

    assert np.array_equal(model.forward(run_of(tokens)).rows(), models("llama-dense").forward(run_of(tokens)).rows())
    model.close()


def test_the_file_may_be_closed_after_loading():
    file, tokens = tiny_file("llama-dense"), some_tokens(5)
    model = load(file)
    before = model.forward(run_of(tokens)).rows().copy()
    file.close()
    gc.collect()

    assert np.array_equal(model.forward(run_of(tokens)).rows(), before)
    model.close()


def test_what_is_outside_is_refused(models):
    model = models("llama-dense")

    with pytest.raises(CapacityError, match="1024 positions"):
        model.forward(run_of([1], start=1024))
    with pytest.raises(CapacityError, match="slot 2"):
        model.forward(run_of([1], slot=2))
    with pytest.raises(OptionError, match="0 to 127"):
        model.forward(run_of([128]))


def test_the_memory_table_names_all_large_parts(models):
    table = {line.purpose: line.n_bytes for line in models("llama-dense").memory_table()}

    assert table.keys() == {"weights", "KV cache", "scratch", "rope tables", "logits"}
    spec = models("llama-dense").state_spec
    assert table["KV cache"] == pytest.approx(spec.n_slots * spec.n_ctx * spec.n_bytes_per_position, rel=0.01)


def test_loading_reports_its_progress():
    calls = []

    class Recorder(Progress):
        def __call__(self, task, done, total):
            calls.append((task, done, total))

    file = tiny_file("llama-dense")
    load(file, progress=Recorder()).close()

    loads = [(done, total) for task, done, total in calls if task == "load"]
    assert loads[0][0] == 0
    assert loads[-1] == (loads[0][1], loads[0][1])
    assert loads == sorted(loads)


@pytest.mark.parametrize("options", [{"n_ctx": 10**9}, {"n_ctx": 10**18}, {"n_slots": 10**9}, {"n_slots": 10**18}])
def test_more_memory_than_the_machine_has_is_refused_at_once(options):
    start = time.process_time()
    with pytest.raises(CapacityError, match="GiB; ask for a smaller context"):
        load(tiny_file("llama-dense"), **options)
    assert time.process_time() - start < 5


def test_address_space_is_asked_for_before_libraries_end_the_process(monkeypatch):
    asked = {}
    monkeypatch.setattr(backend, "require_address_space", lambda n_bytes, what: asked.update({what: n_bytes}))
    load(tiny_file("llama-dense"), threads=2, n_ctx=32).close()
    first, second = asked
    assert (first, second) == ("compiling kernels", "llama-dense.gguf with 2 slots of 32 tokens")
    assert asked[first] > 400 * 2**20
    assert asked[second] > 400 * 2**20


def test_an_absurd_number_of_threads_is_refused():
    with pytest.raises(OptionError, match="threads is 1000000"):
        load(tiny_file("llama-dense"), threads=1_000_000)


@pytest.mark.parametrize("tokens", [[], [-1, 4], [4, 4], [5, 4], [3, 10**6]])
def test_a_vocabulary_that_there_cannot_be_is_refused(models, tokens):
    batch = attrs.evolve(run_of([1, 2, 3]), vocabulary=np.array(tokens, np.int32))
    with pytest.raises(OptionError, match=r"a vocabulary of \d tokens, expected some, which rise from 0 to"):
        models("llama-dense").forward(batch)
