"""Whether tiles may be used, and what users are told of it."""

import ctypes
import errno
import os
from types import SimpleNamespace

import pytest
from oracles.models import tiny_file

from augury.backends.numba_cpu import NumbaCpu, NumbaCpuOptions, tiles
from augury.interfaces import Progress
from augury.plugins.architectures.llama import Llama
from augury.types import ModelOptions


@pytest.fixture
def asked(monkeypatch):
    """What the system is asked, on a Linux of the machine and with the answer that the test chooses."""
    calls = SimpleNamespace(of=[], answer=0, machine="x86_64")

    def syscall(*args):
        calls.of.append(args)
        ctypes.set_errno(errno.EPERM)
        return calls.answer

    monkeypatch.setattr(tiles.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(syscall=syscall))
    monkeypatch.setattr(tiles.sys, "platform", "linux")
    monkeypatch.setattr(tiles.os, "uname", lambda: SimpleNamespace(machine=calls.machine), raising=False)
    tiles.permission.cache_clear()
    yield calls
    tiles.permission.cache_clear()


@pytest.mark.parametrize(
    ("answer", "refusal"), [(0, ""), (-1, f"the system does not let this process use tiles: {os.strerror(errno.EPERM)}")]
)
def test_the_system_is_asked_once(asked, answer, refusal):
    asked.answer = answer
    assert [tiles.permission() for _ in range(3)] == [refusal] * 3
    assert asked.of == [(158, 0x1023, 18)]  # arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA


def test_other_systems_and_machines_are_not_asked(asked, monkeypatch):
    asked.machine = "aarch64"
    assert tiles.permission() == "only Linux lets processes use tiles"
    tiles.permission.cache_clear()
    asked.machine = "x86_64"
    monkeypatch.setattr(tiles.sys, "platform", "darwin")
    assert tiles.permission() == "only Linux lets processes use tiles"
    assert not asked.of


def test_a_start_logs_how_tiles_are_used(monkeypatch, caplog):
    file = tiny_file("llama-dense")
    monkeypatch.setattr(tiles, "note", lambda: "without tiles (amx): not today")
    with caplog.at_level("INFO", "augury.backends.numba_cpu"):
        NumbaCpu(NumbaCpuOptions()).load(file, Llama.plans(file)["main"], ModelOptions(n_ctx=8, threads=1), Progress()).close()
    assert "without tiles (amx): not today" in caplog.text


@pytest.mark.parametrize(
    ("flags", "refusal", "told"),
    [
        (
            "flags : sse2 avx512_bf16 avx512_fp16 amx_bf16 amx_tile",
            "",
            "with tiles (amx) where a model file has 256 MiB or more",
        ),
        ("flags : sse2 avx512_bf16 avx512_fp16 amx_bf16 amx_tile", "not today", "without tiles (amx): not today"),
        ("flags : sse2 avx512_bf16 amx_bf16 amx_tile", "", None),
        (None, "", None),
    ],
)
def test_users_are_told_of_tiles(monkeypatch, tmp_path, flags, refusal, told):
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(flags)
    monkeypatch.setattr(tiles, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(tiles, "permission", lambda: refusal)
    assert NumbaCpu.note() == told
