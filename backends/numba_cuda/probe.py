"""Whether this machine can run CUDA kernels, found out without importing numba, or anything that is not there."""

from __future__ import annotations

import ctypes
import os
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from augury.devices import DeviceInfo
from augury.extras import install_command
from augury.files.cache import cache_folder

LEAST_CAPABILITY = (8, 0)  # max.NaN, and loads that leave L1 alone
_LEAST_DRIVER = 13000  # of CUDA 13.0, as cuDriverGetVersion tells it: earlier ones refuse machine code of its linker
_MAJOR, _MINOR = 75, 76  # attributes of a device, as cuda.h numbers them
_NAME_BYTES = 128
INSTALL = install_command("cuda")


def unavailable_reason() -> str | None:
    """The missing part, found and expected, and what to do; None if kernels can run."""
    missing = [name for name in ("numba_cuda", "cuda.bindings", "cuda.core") if not _is_there(name)]
    if missing:
        return f"{missing[0]} is not installed; {INSTALL}"
    if find_compiler() is None and not any(cubins_folder().glob("*/*.cubin")):
        return f"there is no libnvvm, which compiles kernels; {INSTALL}, or set CUDA_HOME to a CUDA toolkit"
    return _no_gpu()


def devices() -> tuple[DeviceInfo, ...]:
    """The GPUs that will do, by number."""
    driver, n = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    driver.cuInit(0)
    driver.cuDeviceGetCount(ctypes.byref(n))
    return tuple(found for number in range(n.value) if (found := _device(driver, number)) is not None)


def _device(driver: Any, number: int) -> DeviceInfo | None:
    """A GPU; None where it will not do. Its free memory only a context tells, which is no more than asked for here."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if driver.cuDeviceGet(ctypes.byref(device), number) or _capability(driver, device) < LEAST_CAPABILITY:
        return None
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return None
    failed = driver.cuCtxPushCurrent_v2(context)
    if not failed:
        failed = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    driver.cuDevicePrimaryCtxRelease_v2(device)
    options = {"device": number}
    return None if failed else DeviceInfo(f"CUDA{number}", _name(driver, device), total.value, free.value, options)


def cubins_folder() -> Path:
    """Where the machine code of kernels is kept."""
    return cache_folder("cubins")


def find_compiler() -> Path | None:
    """Where libnvvm is: among the packages of the interpreter, or in a toolkit."""
    packages = find_spec("nvidia")
    roots = [Path(each) for each in (packages.submodule_search_locations or ())] if packages else []
    toolkit = Path(os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda") / "nvvm"
    places = [*product(("*/lib*/libnvvm.so*", "*/nvvm/lib*/libnvvm.so*"), roots), ("lib*/libnvvm.so*", toolkit)]
    return next((found for pattern, root in places for found in sorted(root.glob(pattern))), None)


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False


def _no_gpu() -> str | None:
    """Why the driver has no GPU that will do. Device 0 stands for all."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1); install one, of CUDA 13 or later"
    if error := driver.cuInit(0):
        return f"the NVIDIA driver finds no GPU that works (cuInit: error {error}); see what nvidia-smi says"
    device, version = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    if version.value < _LEAST_DRIVER:
        found = f"{version.value // 1000}.{version.value % 1000 // 10}"
        return f"the NVIDIA driver is of CUDA {found}, expected 13.0 or later; install a newer one"
    if error := driver.cuDeviceGet(ctypes.byref(device), 0):
        return f"the NVIDIA driver has no device 0 (error {error}); see what nvidia-smi says"
    capability = _capability(driver, device)
    if capability < LEAST_CAPABILITY:
        found = f"{_name(driver, device)} has compute capability {capability[0]}.{capability[1]}"
        return (
            f"{found}, expected {LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} or later; use another GPU, or --backend numba-cpu"
        )
    return None


def _capability(driver: Any, device: ctypes.c_int) -> tuple[int, int]:
    values = ctypes.c_int(), ctypes.c_int()
    for value, attribute in zip(values, (_MAJOR, _MINOR), strict=True):
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return values[0].value, values[1].value


def _name(driver: Any, device: ctypes.c_int) -> str:
    name = ctypes.create_string_buffer(_NAME_BYTES)
    driver.cuDeviceGetName(name, _NAME_BYTES, device)
    return name.value.decode()
