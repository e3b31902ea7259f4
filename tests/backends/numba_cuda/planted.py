"""Kernels that are wrong on purpose: the check of machine code is to find each."""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import cuda, kernel
from augury.backends.numba_cuda.kernels.norm import NormArgs


@kernel("f", name="others_doubles")
def doubles(x):
    x[cuda.threadIdx.x] = x[cuda.threadIdx.x] * 2.5 + 0.1


@kernel("fi", name="others_stack")
def stack(x, n):
    values = cuda.local.array(64, np.float32)
    for i in range(64):
        values[i] = x[i]
    for i in range(n):
        values[i * n & 63] += x[i]
    x[cuda.threadIdx.x] = values[n & 63]


@kernel("fi", name="others_shared")
def shared(x, n):
    values = cuda.shared.array(4096, np.float32)
    values[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    cuda.syncthreads()
    x[cuda.threadIdx.x] = values[n]


def narrow(w, y):
    y[0] = np.float32(w[0]) + np.float32(w[1])


narrow_product = kernel("wf", name="multiply_Q4_K_1")(narrow)
no_matrices = kernel("wf", name="multiply_Q4_K_matrix_16")(narrow)
narrow_keys = kernel("wf", name="attend_f16_f16")(narrow)


@kernel("jfi", name="others_early")
def early(inputs, x, n):
    value = x[cuda.threadIdx.x]
    gpu.wait_for_launch()
    x[n + cuda.threadIdx.x] = value


@kernel("jfi", name="others_hasty")
def hasty(inputs, x, n):
    if cuda.threadIdx.x >= n:
        return
    gpu.wait_for_launch()
    x[cuda.threadIdx.x] = np.float32(n)


@kernel("jw", NormArgs, name="others_weights")
def weights_only(inputs, x, norm):
    weight = norm.weight[cuda.threadIdx.x]
    gpu.wait_for_launch()
    x[cuda.threadIdx.x] = gpu.bits_of(weight)


@kernel("jw", name="others_constant")
def constant(inputs, x):
    a, b = gpu.weights8(x, 2 * cuda.threadIdx.x)
    x[2 * cuda.threadIdx.x] = a + b


@kernel("jfi", name="others_loop")
def loop(inputs, x, n):
    total = np.float32(0)
    for i in range(n):
        total = gpu.add(total, x[i])
    x[0] = total
