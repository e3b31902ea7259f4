"""Tiles, which Intel's Xeons have since 2023 (AMX): whether this process may use them, and for which models."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

LEAST_FOR_TILES = 256 << 20
"""Bytes of a model file from which on tiles are used. Single tokens of a model that caches hold take longer by tiles."""

# Linux, arch/x86/include/uapi/asm/prctl.h
_ARCH_PRCTL = {"x86_64": 158}
_ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 0x1023, 18
_CPU_INFO = Path("/proc/cpuinfo")
_FLAGS = {"amx_tile", "amx_bf16", "avx512_bf16", "avx512_fp16"}  # Linux's names of the features that `isa.ISAS` asks LLVM for


@cache
def permission() -> str:
    """Ask the system, once, to let this process use tiles; returns why it does not, nothing where it does."""
    machine = os.uname().machine if hasattr(os, "uname") else ""
    if sys.platform != "linux" or machine not in _ARCH_PRCTL:
        return "only Linux lets processes use tiles"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_ARCH_PRCTL[machine], _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0:
        return ""
    return f"the system does not let this process use tiles: {os.strerror(ctypes.get_errno())}"


def note() -> str | None:
    """A note for users on the tiles of this machine; None where it has none."""
    try:
        flags = set(_CPU_INFO.read_text().split())
    except OSError:
        return None
    if not flags.issuperset(_FLAGS):
        return None
    if refusal := permission():
        return f"without tiles (amx): {refusal}"
    return f"with tiles (amx) where a model file has {LEAST_FOR_TILES >> 20} MiB or more"
