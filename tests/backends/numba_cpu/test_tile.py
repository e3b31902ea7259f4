import pytest
from llvmlite import ir

from augury.backends.numba_cpu.kernels import tile
from augury.backends.numba_cpu.kernels.simd import I64, emit_prefetches


@pytest.mark.parametrize(("is_zen", "n_tokens", "locality"), [(True, 1, 0), (True, 8, 0), (False, 4, 2), (False, 5, 3)])
def test_weights_are_prefetched_past_the_caches_of_zens_alone(monkeypatch, is_zen, n_tokens, locality):
    monkeypatch.setattr(tile, "is_zen", lambda: is_zen)
    function = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64]), "prefetch")
    builder = ir.IRBuilder(function.append_basic_block())
    emit_prefetches(builder, *function.args, tile._prefetch_locality(n_tokens))
    assert f"i32 0, i32 {locality}, i32 1)" in str(function)  # a read, its locality, of data
