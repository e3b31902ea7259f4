"""A model on a GPU, whose driver stands in for NVIDIA's: launches run in the simulator, graphs as they were recorded."""

from types import SimpleNamespace

import attrs
import numpy as np
import pytest
from cuda_simulator.device import simulate
from oracles.cuda_driver import KERNELS
from oracles.drafts import draft_file
from oracles.models import nmse, tiny_file
from oracles.passes import run_of, tree_of

from augury.backends.numba_cuda import aot, probe
from augury.backends.numba_cuda.aot import Binary, Compiler
from augury.backends.numba_cuda.backend import NumbaCuda, NumbaCudaOptions
from augury.backends.numba_cuda.gpu import Gpu
from augury.backends.numba_cuda.kernels.dialect import kernel
from augury.backends.numba_cuda.kernels.inputs import SIZE
from augury.batch import Batch
from augury.drafters.model.draft_runner import DraftRunner
from augury.drafters.model.written_draft import DraftRequest
from augury.engine.context import EngineContext
from augury.engine.engine import Engine
from augury.errors import AuguryError, CapacityError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.plugins.memory.contiguous import Contiguous
from augury.registry import Registry
from augury.stages import Stage, StagedBackend
from augury.testing.tiny_model import N_VOCAB, write_tiny_model
from augury.types import ModelOptions


def load(path, **options):
    file = ModelFile.open(path)
    plan = plan_of(file, Registry.discover())
    plan = attrs.evolve(plan, layers=plan.layers[:1])
    return NumbaCuda(NumbaCudaOptions(**options)).load(file, plan, ModelOptions(n_ctx=32, n_slots=2), Progress())


def told(model):
    """What a model says of some passes, one of them with a path of a tree that moves."""
    first = model.forward(run_of([4, 5, 6]))
    found = [first.argmax(), first.rows(), *first.top_k(np.int32([2]), 4)]
    found.append(model.forward(tree_of([7, 8], [-1, -1], start=3)).rows())
    moved = attrs.evolve(run_of([9], start=4), accepted=np.array([[0, 4, 3]], np.int32))
    found.append(model.forward(moved).rows())
    model.restore(1, model.save(0, 4))
    return [*found, model.forward(run_of([9], slot=1, start=4)).rows()]


@pytest.mark.sample(0)
def test_graphs_and_single_launches_give_what_the_simulator_gives(driver, tmp_path, monkeypatch):
    write_tiny_model(tmp_path / "tiny.gguf", weight_type="Q4_0")
    found = []
    for has_graphs in (True, False):
        model = load(tmp_path / "tiny.gguf", graphs=has_graphs)
        found.append(told(model))
        n_allocated = driver.calls.count("cuMemAlloc")
        passed = model.forward(run_of([4, 5, 6]))
        assert passed.wait() == 0.002
        assert np.array_equal(passed.rows(), found[-1][1]), "a graph gives what the steps did that it was recorded of"
        assert driver.calls.count("cuMemAlloc") == n_allocated, "a pass allocates nothing"
        assert ("cuGraphLaunch" in driver.calls) == has_graphs
        passed = model.forward(run_of([4, 5, 6]))
        model.close()
        model.close()
        assert not driver.held
        for use in (passed.wait, passed.rows, passed.argmax):
            with pytest.raises(AuguryError, match="what is on CUDA0 was given back: its model is closed"):
                use()
        driver.calls.clear()
    monkeypatch.undo()
    simulate(monkeypatch)
    found.append(told(load(tmp_path / "tiny.gguf")))
    for each in zip(*found, strict=True):
        assert np.array_equal(each[0], each[1])
        assert np.array_equal(each[0], each[2])


def test_a_round_is_one_graph_and_one_wait(driver, tmp_path):
    write_tiny_model(tmp_path / "tiny.gguf", weight_type="Q4_0")
    model, row = load(tmp_path / "tiny.gguf"), np.zeros(1, np.int32)

    def calls(tokens, start, *, moves=()):
        driver.calls.clear()
        batch = attrs.evolve(run_of(tokens, start=start), accepted=np.array(moves, np.int32).reshape(-1, 3))
        passed = model.forward(batch)
        asked = driver.calls.count("cuStreamSynchronize")
        passed.wait()
        passed.argmax(), passed.top_k(row, 4), passed.gather(0, np.array([3, 8]))
        return asked, [each for each in driver.calls if each not in ("cuEventRecord", "cuEventElapsedTime", "cuCtxSetCurrent")]

    for i in range(2):  # a graph is recorded of the first pass of a size, which also learns what is asked for
        calls([5 + i], i)
    best, gathered = ["cuLaunchKernelEx", "cuMemcpyDtoHAsync"], ["cuMemcpyHtoDAsync", "cuLaunchKernelEx", "cuMemcpyDtoHAsync"]
    copied = {name: arguments[2] for name, arguments in driver.graph if name.startswith("cuMemcpy")}
    assert copied == {"cuMemcpyHtoDAsync": 4 * SIZE, "cuMemcpyDtoHAsync": 512}
    launches = [arguments[0] for name, arguments in driver.graph if name == "cuLaunchKernelEx"]
    assert len(driver.graph) == 2 + len(launches)
    assert [getattr(each, "numAttrs", 0) for each in launches] == [0] + [1] * (len(launches) - 1), "the first waits for a copy"
    pass_of_one = ["cuGraphLaunch", *best, *gathered, "cuStreamSynchronize"]
    assert calls([7], 2) == (0, pass_of_one)
    moving = ["cuMemcpyHtoDAsync", "cuLaunchKernelEx", "cuLaunchKernelEx"]  # of keys and of values
    assert calls([8], 2, moves=[(0, 2, 1)]) == (0, [*moving, *pass_of_one])
    model.close()


def test_features_come_with_their_pass_and_rows_of_an_encoder_alone(driver, tmp_path):
    write_tiny_model(tmp_path / "tiny.gguf", weight_type="Q4_0")
    model = load(tmp_path / "tiny.gguf")
    head = ModelFile.open(draft_file("eagle3-llama"))
    head.borrow_from(tiny_file("llama-dense"))
    plan = plan_of(head, Registry.discover(), "encoder")
    encoder = NumbaCuda(NumbaCudaOptions()).load(head, plan, ModelOptions(n_ctx=32), Progress())
    hidden = np.random.default_rng(1).standard_normal((2, plan.n_hidden), np.float32)
    for _ in range(2):  # the first records a graph
        driver.calls.clear()
        passed = model.forward(Batch.chain([4, 5, 6], features=("layer.0", "output")))
        driver.calls.clear()
        found = [passed.argmax(), passed.features("layer.0"), passed.features("output")]
        assert driver.calls.count("cuStreamSynchronize") == 1
        assert np.array_equal(found[0], passed.rows().argmax(axis=1))
        driver.calls.clear()
        rows = encoder.forward(Batch.chain([0, 0], hidden=hidden)).rows()
    assert driver.calls.count("cuStreamSynchronize") == 2, "before its inputs are written, and for its rows"
    kernels = {arguments[1].name for name, arguments in driver.graph if name == "cuLaunchKernelEx"}
    assert not {each for each in kernels if "best" in each}
    right = make_backend(Registry.discover(), "reference").load(head, plan, ModelOptions(n_ctx=32), Progress())
    assert nmse(rows, right.forward(Batch.chain([0, 0], hidden=hidden)).rows()) < NumbaCuda.tolerance
    for each in (model, encoder):
        each.close()


def test_a_plain_text_is_waited_for_once_for_four_tokens(driver, tmp_path, monkeypatch):
    write_tiny_model(tmp_path / "tiny.gguf", weight_type="Q4_0")
    monkeypatch.setattr(probe, "unavailable_reason", lambda: None)
    monkeypatch.setattr(driver, "do_cuLaunchKernelEx", lambda *_: (), raising=False)  # so all logits are 0
    found, n = [], 17
    for is_chained in (True, False):
        with Engine.load(tmp_path / "tiny.gguf", backend="numba-cuda", n_ctx=64, spec_type="none") as engine:
            context = engine._worker._loop._context
            context.chain_rows *= is_chained
            for _ in range(2):  # first, graphs are recorded
                driver.calls.clear()
                engine.generate([5, 6, 7], max_tokens=n, temperature=0.0, ignore_eos=True, cache_prompt=False)
            found.append([driver.calls.count(name) for name in ("cuGraphLaunch", "cuStreamSynchronize")])
    assert found == [[n, 1 + (n - 1) // 4], [n, n]], "a wait for the prompt's pass, and one for each chain"


def test_a_draft_is_a_chain_of_graphs_and_one_wait(driver, tmp_path):
    write_tiny_model(tmp_path / "tiny.gguf", weight_type="Q4_0")
    model, text, n = load(tmp_path / "tiny.gguf"), np.int32([5, 6, 7]), 3
    runners = [DraftRunner(EngineContext(model, Contiguous(None, model.state_spec, model)), n_vocab=N_VOCAB) for _ in range(2)]
    runners[1]._context.chain_rows = 0  # token by token
    for p_min, n_waits in ((0.0, 1), (1e-9, 2)):  # where drafts may end early, two passes are begun, then the others

        def drafted(runner, p_min=p_min):
            driver.calls.clear()
            (made,) = runner.draft([DraftRequest(0, text, n, p_min)])
            return made.tokens, made.confidence

        right, found = drafted(runners[1]), [drafted(runners[0]) for _ in range(2)]  # first, graphs are recorded
        assert found == [right, right]
        assert (len(right[0]), driver.calls.count("cuGraphLaunch"), driver.calls.count("cuStreamSynchronize")) == (
            n,
            n,
            n_waits,
        )
    model.close()


@pytest.mark.sample(0)
def test_two_gpus_share_a_model(driver, tmp_path):
    write_tiny_model(tmp_path / "tiny.gguf", weight_type="Q4_0")
    driver.do_cuDeviceGetCount = lambda: (2,)
    whole = load(tmp_path / "tiny.gguf")
    right = told(whole)
    whole.close()
    file = ModelFile.open(tmp_path / "tiny.gguf")
    plan = plan_of(file, Registry.discover())
    plan = attrs.evolve(plan, layers=plan.layers[:1])
    stages = [Stage(NumbaCuda(NumbaCudaOptions(device=i)), i, i + 1, f"CUDA{i}") for i in range(2)]
    model = StagedBackend(stages).load(file, plan, ModelOptions(n_ctx=32, n_slots=2), Progress())
    assert {line.device for line in model.memory_table()} == {"CUDA0", "CUDA1"}
    for found, expected in zip(told(model), right, strict=True):
        assert np.array_equal(found, expected)
    passed = model.forward(run_of([4]))
    assert passed.wait() > 0.002, "the time of both"
    model.close()
    assert not driver.held


def test_what_does_not_fit_is_refused_with_the_numbers(driver, tmp_path):
    write_tiny_model(tmp_path / "tiny.gguf")
    driver.free = 1 << 16
    with pytest.raises(CapacityError, match=r"tiny.gguf with 2 slots of 32 tokens does not fit: .* GiB are free on Stand-in"):
        load(tmp_path / "tiny.gguf")
    assert not driver.held
    with pytest.raises(UnsupportedError, match="there is no GPU 3; expected a number below 1"):
        load(tmp_path / "tiny.gguf", device=3)


def test_an_error_of_the_driver_is_named(driver, tmp_path):
    write_tiny_model(tmp_path / "tiny.gguf")
    driver.cuModuleLoadData = lambda image: (SimpleNamespace(name="CUDA_ERROR_NO_BINARY_FOR_GPU"), None)
    with pytest.raises(AuguryError, match="cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU; see what nvidia-smi says"):
        load(tmp_path / "tiny.gguf")


def test_each_gpu_is_called_in_its_own_context(driver):
    gpus = [Gpu(0), Gpu(0)]
    driver.calls.clear()
    for gpu in (*gpus, *gpus):
        for _ in range(2):
            gpu.mark()
            gpu.wait()
            gpu.wait()
    calls = ["cuEventRecord", "cuStreamSynchronize", "cuEventRecord", "cuStreamSynchronize", "cuEventElapsedTime"]
    assert driver.calls == ["cuCtxSetCurrent", *calls] * 4, "and is not asked where nothing was begun"
    for gpu in gpus:
        gpu.close()


def test_machine_code_is_made_once_and_kept(tmp_path, monkeypatch):
    made = []

    def compile_kernel(kernel, capabilities):
        made.append(kernel.name)
        return [Binary(kernel.name, b"\n" + kernel.name.encode() + b"\n") for _ in capabilities]

    monkeypatch.setattr(aot, "compile_kernel", compile_kernel)
    monkeypatch.setattr(aot, "find_compiler", lambda: tmp_path)
    kernels = list(KERNELS.values())[:3]

    def binaries(capability=(9, 0)):
        made.clear()
        return Compiler(capability, tmp_path).binaries(kernels, Progress())

    first = binaries()
    assert (len(made), binaries(), made) == (3, first, [])
    (path, *_) = tmp_path.glob("sm_90-*/*.cubin")
    path.write_bytes(path.read_bytes()[:-1])
    assert (binaries(), made) == (first, [path.stem])
    binaries((8, 6))
    assert len(made) == 3, "for 8.0, which runs there, too"
    assert (binaries((8, 0)), made) == (first, [])
    monkeypatch.setattr(aot, "find_compiler", lambda: None)
    assert (binaries((8, 9)), made) == (first, [])
    with pytest.raises(UnsupportedError, match=r"is not compiled for compute capability 12.0, and there is no libnvvm"):
        binaries((12, 1))
    monkeypatch.setattr(aot, "find_compiler", lambda: tmp_path)
    monkeypatch.delattr(np, "row_stack", raising=False)  # as numpy 2.5 has it
    with pytest.raises(UnsupportedError, match=r"compiles no kernel with numpy 2\..*, expected numpy below 2.5; pip install"):
        binaries((12, 1))


def test_loops_that_turn_unknown_times_are_not_written_out():
    body = ["define void @f(i1 %c) {", '"first":', '  br label %"turn"', '"turn":']
    back, end = '  br i1 %c, label %"turn", label %"end"', ['"end":', "  ret void", "}"]
    told = aot._as_written("\n".join([*body, back, *end, *body, *end, "!3 = !{i32 1}"])).splitlines()
    marked = [*body, f"{back}, !llvm.loop !5", *end, *body, *end, "!3 = !{i32 1}"]
    assert told == [*marked, '!4 = !{!"llvm.loop.unroll.runtime.disable"}', "!5 = distinct !{!5, !4}"]
    assert aot._as_written("\n".join([*body, *end])).splitlines() == [*body, *end]
    for line, problem in (
        ('  switch i32 %n, label %"turn" []', "a loop by no branch"),
        ("  br i1 %c, %turn, %end", "a branch to no label"),
        ('  br label %"gone"', "labels of LLVM IR that were not found"),
    ):
        with pytest.raises(AssertionError, match=problem):
            aot._as_written("\n".join([*body, line, *end]))


@pytest.mark.parametrize("has_loop", [True, False])
def test_a_kernel_whose_loops_are_not_found_is_not_compiled(has_loop, monkeypatch):
    """As by a numba that writes other LLVM IR."""

    def straight(x):
        x[0] = 1

    def turning(x):
        for i in range(x[0]):
            x[i] = 1

    ir = ["define void @f() {", "  ret void", "}", ""]

    class Library:
        llvm_strs = property(lambda self: self._llvm_strs)

        def __init__(self):
            self._nvvm_options, self._llvm_strs = {}, ["\n".join(ir)]

        def get_asm_str(self, cc):
            return f"PTX for {cc}"

    library = Library()
    monkeypatch.setattr(aot, "_library_of", lambda *_: library)
    made = kernel("j", name="made")(turning if has_loop else straight)
    if has_loop:
        with pytest.raises(AssertionError, match="no loop was found in the LLVM IR of kernel made"):
            aot.ptx_of(made, [(9, 0)])
    else:
        assert aot.ptx_of(made, [(9, 0)]) == ["PTX for (8, 0)"]
