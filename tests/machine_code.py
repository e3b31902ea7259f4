"""The machine code of CUDA kernels, and its faults: `python tests/machine_code.py OUT.json PART N`, or `... OUT.json MODULE`.

A process of its own compiles: there kernels are written in CUDA, in other tests in what simulates it. It compiles part PART of
N of augury's kernels, from 0 on, but those between others (`BETWEEN`), or those of a file, MODULE. Needs the dependency group
`cuda`, and no GPU.
"""

import itertools
import json
import re
import runpy
import struct
import subprocess
import sys
from bisect import bisect_right
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from support.machine_memory import FIRST_PARAMETER, WEIGHTS, early, names_of, read_by_constant_loads

WARP = 32
CAPABILITIES = ((8, 0), (9, 0), (10, 0))
# by words of kernels' names; `route` is one block, those of `recur` are one warp each
# with 80, three blocks of 256 threads have room, or six of 128, with 88 five of 128, with 128 two of 256, with 208 one; of
# `mix_streams` and norms there is one for each token. Most of these are what 8.0 takes, 9.0 and 10.0 take less
MOST_REGISTERS = {
    "matrix": 128,
    "halves_64": 248,
    "halves": 128,
    "gated_1": 128,
    "gated": 208,
    "multiply": 112,
    "route": 255,
    "f16_f16": 128,
    "attend_latent": 128,
    "attend": 184,
    "gate": 112,
    "recur": 240,
    "choose": 80,
    "mix_streams": 96,
    "convolve": 96,  # of this and the next a multiprocessor has one block or two
    "norm_": 192,
}
OTHERS_REGISTERS = 64
MOST_SHARED = {
    "matrix": 34 << 10,
    "halves": 34 << 10,
    "attend_latent": 36 << 10,
    "attend": 37 << 10,
}  # bytes; from 9.0 on the system's own 1024 are among them
OTHERS_SHARED = 9 << 10
WITH_DOUBLES = {"sums_of_chunks"}
PATTERNS = {
    "spills": r"\b(LDL|STL)\b",
    "doubles": r"\b(DADD|DMUL|DFMA|DSETP|DMNMX|MUFU\.RCP64H|[FI]2F\.F64|F2[FI]\S*\.F64)",
    "wide_loads": r"\bLDG\S*\.128",
    "dot_products": r"\bIDP\.4A",
    "arrivals": r"\bMEMBAR\S*\.GPU\b[^}]*?\bATOMG\S*\.INC\.STRONG\.GPU\b[^}]*?\bCCTL\.IVALL\b",
    "products_of_halves": r"\bHMMA\.16816\.F32",
    "brought_near": r"\bUBLKPF\.L2\b",
    "waits": r"\bACQBULK\b",  # for the end of the launch before, which this one may overlap with
    "matrix_products": r"\bIMMA\.16(816|832)\.S8\.S8",
}
CONTRACTIBLE = r"\b(add|sub|mul|mad)\.(ftz\.|sat\.)*f(32|64)\b"  # in PTX, without a rounding of its own
# kernels that go on when all their blocks have ended
LAST_BLOCKS = r"multiply_[A-Z]+[0-9]*(_[0-9KNLXS]+)?_([0-9]|matrix_16)$|route_|attend(?!_latent_f16_2)|choose_(?!blocks)"
OF_MULTIPROCESSOR = 1 << 16  # registers
LETTERS = {"i": 4, "r": 4}  # bytes of a kernel's parameters; all others are addresses
# Products of two tokens, or of 32 in matrices, are by the same source as those of fewer and of more, whose registers theirs lie
# between; of one type they are read all the same.
BETWEEN = r"(?!multiply_Q4_K_)multiply_\S+_(2|matrix_32|halves_(16|32))"
# One kernel of so many is compiled for 10.0, too, by the same source as for 9.0.
SOME = 4
# Instructions of the inner loop of products of halves for 1024 weights, by tokens and words of kernels' names; an H100 reads so
# many weights of Q4_K in the time of 184
OF_LOOP = {8: {"Q4_K": 95, "IQ4": 190, "MXFP4": 190, "": 125}, 64: {"Q4_K": 140, "IQ4": 235, "MXFP4": 235, "": 200}}
WIDE_LOADS = 2  # 16 bytes at once: at least one of the weights, and one of what they are multiplied with


def problems(name, found):
    """What is wrong with a kernel's machine code."""
    bounds = {"registers": (MOST_REGISTERS, OTHERS_REGISTERS), "bytes of shared memory": (MOST_SHARED, OTHERS_SHARED)}
    for (unit, (by_word, others)), n in zip(bounds.items(), (found["registers"], found["shared"]), strict=True):
        if n > (most := next((bound for word, bound in by_word.items() if word in name), others)):
            yield f"{name} has {n} {unit}, expected {most} at most"
    yield from _problems_of_launches(name, found)
    if found["early"]:
        yield f"{name} accesses memory of the launch before until that has ended: {'; '.join(found['early'])}"
    if found["waitless"]:
        yield f"{name} has {found['waitless']} ends without a wait for the launch before, expected none"
    if written := set(found["constant_loads"]) - WEIGHTS:
        yield f"{name} has loads of {', '.join(sorted(written))} that may not see what launches write, expected only of weights"
    if found["contractible"]:
        yield f"{name} has {found['contractible']} sums and products that may be contracted, expected none"
    if found["stack"] or found["spills"]:
        yield f"{name} has a stack of {found['stack']} bytes and {found['spills']} loads and stores of it, expected none"
    if found["doubles"] and name not in WITH_DOUBLES:
        yield f"{name} has {found['doubles']} instructions of double precision, expected none"
    if name.startswith("attend"):
        yield from _problems_of_attention(name, found)
    if re.match(LAST_BLOCKS, name) and not found["arrivals"]:
        yield f"{name} has no fence, addition to a counter and fence in turn, by which its last block goes on"
    if name.startswith("multiply"):
        yield from _problems_of_products(name, found)


def _problems_of_products(name, found):
    if found["waits"] and not found["brought_near"]:
        yield f"{name} has its weights brought nearer by no instruction, while the launch before goes on"
    if "_matrix_" in name:
        n_wanted = int(name.rpartition("_")[2]) // 8 * (2 if re.search(r"Q[236]_K", name) else 1)
        if found["matrix_products"] != n_wanted:
            yield f"{name} has {found['matrix_products']} matrix instructions of bytes, expected {n_wanted}"
        return
    if "_halves_" in name:
        n_tokens = int(name.rpartition("_")[2])
        n_wanted = 12 * n_tokens // 8 * (2 if n_tokens == 64 else 1)  # of two steps, and of one; of one tile of rows, or two
        if found["products_of_halves"] != n_wanted:
            yield f"{name} has {found['products_of_halves']} matrix instructions of halves, expected {n_wanted}"
        most = next((bound for word, bound in OF_LOOP.get(n_tokens, {}).items() if word in name), 255)
        if not 0 < (n := found["of_loop"] * n_tokens / 8) <= most:
            yield f"{name} has {n} instructions for 1024 weights in its inner loop, expected {most} at most"
        return
    n_types = max(1, name.count("Q"))
    if found["wide_loads"] < WIDE_LOADS * n_types:
        yield f"{name} has {found['wide_loads']} loads of 16 bytes, expected {WIDE_LOADS} at least for every type"
    is_float = re.search(r"_B?F\d", name) is not None
    if not is_float and found["dot_products"] < 8 * n_types:
        yield f"{name} has {found['dot_products']} byte dot products, expected 8 for every token and type"


def _problems_of_launches(name, found):
    n, n_threads = found["registers"] * found["threads"], found["threads"]
    if n > OF_MULTIPROCESSOR:
        yield f"{name} has {n} registers in launches of {n_threads} threads, expected {OF_MULTIPROCESSOR} at most"
    if found["parameters"] != found["given"]:
        yield f"{name} has parameters of {found['parameters']} bytes, and is given {found['given']}"


def _problems_of_attention(name, found):
    if not found["wide_loads"] and "f16" in name:  # codes of eight values are eight bytes at most
        yield f"{name} has no loads of 16 bytes, expected some of halves"
    if name.startswith("attend_latent"):
        n_wanted = 32 * int(name.rpartition("_")[2]) if "f16" in name else 48
    else:  # of keys by the first type, which of pooled rows is that of values, too
        n_wanted = (64 if re.match("attend_(pooled_)?f16", name) else 24) + 48
    if found["products_of_halves"] != n_wanted:
        yield f"{name} has {found['products_of_halves']} matrix instructions of halves, expected {n_wanted}"


def report(kernels, threads=MappingProxyType({}), some=1):
    """What there is to know about kernels, by capability and name; for the newest capability about one of `some` of them.

    `threads` are the most of a block, by names; of others they are a warp.
    """
    from augury.backends.numba_cuda.aot import Compiler, linked, ptx_of

    told, codes = ({capability: make() for capability in CAPABILITIES} for make in (dict, list))
    by_name = {kernel.name: kernel for kernel in kernels}
    for i, kernel in enumerate(kernels):
        capabilities = CAPABILITIES[: None if i % some == 0 else -1]
        for capability, ptx in zip(capabilities, ptx_of(kernel, capabilities), strict=True):
            binary = linked(kernel, ptx, capability)
            Compiler(capability).keep(kernel, binary)
            told[capability][kernel.name], code = usage_and_code(binary.cubin)
            given, names = [LETTERS.get(letter, 8) for letter in kernel.parameters], [*names_of(kernel)]
            facts = {"parameters": parameters(binary.cubin), "given": given, "threads": threads.get(kernel.name, WARP)}
            facts["contractible"], facts["loads"] = len(re.findall(CONTRACTIBLE, ptx)), len(re.findall(r"\bld\.global\.", ptx))
            told[capability][kernel.name] |= facts | {"constant_loads": read_by_constant_loads(ptx, names)}
            codes[capability].append(code)
    for capability, found in told.items():
        for name, instructions in zip([*found], disassembled(codes[capability], capability), strict=True):
            kernel = by_name[name]
            facts, text = found[name], "\n".join(instructions.values())
            facts |= {what: len(re.findall(pattern, text)) for what, pattern in PATTERNS.items()}
            facts |= {"early": [], "waitless": 0, "of_loop": of_loop(instructions)}
            if first := FIRST_PARAMETER.get(capability[0]):
                facts["early"], ends = early(instructions, places_of(kernel, first))
                facts["waitless"] = len(ends)
    return told


def of_loop(code):
    """Instructions of the innermost loop with products of halves for each four of these, which are a step's of eight tokens."""
    loops = [(int(m[1], 16), at) for at, each in code.items() if (m := re.search(r"\bBRA\b.*\b0x([0-9a-f]+)$", each))]
    bodies = [[each for at, each in code.items() if begin <= at <= end] for begin, end in loops if begin <= end]
    found = [(len(body), sum("HMMA" in each for each in body)) for body in bodies]
    return min((4 * n / n_products for n, n_products in found if n_products), default=0)


def places_of(kernel, place):
    """The names of a kernel's pointers by their places, which begin with `place`, each at a multiple of its size."""
    found = {}
    for name, letter in zip(names_of(kernel), kernel.parameters, strict=True):
        n_bytes = LETTERS.get(letter, 8)
        place = -(-place // n_bytes) * n_bytes
        found[place] = name
        place += n_bytes
    return found


def threads_of_launches():
    """The most threads of a block, by the names of kernels that some models launch."""
    from oracles.cuda_launches import launches

    found = {}
    for launch in launches():
        found[launch.kernel.name] = max(launch.n_threads, found.get(launch.kernel.name, 0))
    return found


def parameters(cubin):
    """The bytes of each parameter of the kernel in an ELF file of machine code, by what its section .nv.info.NAME says."""
    (start,), (_, n, of_names) = struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<3H", cubin, 58)
    sections = [
        struct.unpack_from("<IIQQQQ", cubin, start + 64 * i) for i in range(n)
    ]  # name, type, flags, address, place, size
    names, found = sections[of_names][4], {}
    for name, *_, place, size in sections:
        at, end = place, place + size
        while cubin.startswith(b".nv.info.", names + name) and at < end:
            form, what, n_bytes = struct.unpack_from("<BBH", cubin, at)
            if (form, what) == (4, 0x17):  # a parameter: which, where, and from bit 18 on its size
                _, number, _, bits = struct.unpack_from("<IHHI", cubin, at + 4)
                found[number] = bits >> 18
            at += 4 + (n_bytes if form == 4 else 0)
    return [found[number] for number in sorted(found)]


def usage_and_code(cubin):
    """The resources that a kernel uses, and the instructions of all its functions, its own first."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        (numbers,) = re.findall(
            r"Function (?!__cuda)\S+\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", of_cuda("cuobjdump", "-res-usage", path)
        )
        of_cuda("cuobjdump", "-xtext", "all", path, cwd=folder)
        parts = sorted(Path(folder).glob("*.bin"), key=lambda part: "__cuda" in part.name)
        code = b"".join(part.read_bytes() for part in parts)
    return dict(zip(("registers", "stack", "shared"), map(int, numbers), strict=True)), code


def disassembled(codes, capability):
    """The instructions of kernels by address, by one process for all: to start it takes four times as long as one kernel."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "code"
        path.write_bytes(b"".join(codes))
        lines = of_cuda("nvdisasm", "-ndf", "-b", "SM{}{}".format(*capability), path)
    found, ends = [{} for _ in codes], [*itertools.accumulate(map(len, codes))]
    for at, instruction in re.findall(r"/\*([0-9a-f]{4,})\*/ +([^/]+);", lines):
        found[bisect_right(ends, int(at, 16))][int(at, 16)] = instruction.strip()
    return found


def of_cuda(tool, *words, cwd=None):
    import nvidia

    (found,) = [each for root in nvidia.__path__ for each in Path(root).glob(f"*/bin/{tool}")]
    return subprocess.run([found, *words], capture_output=True, text=True, check=True, cwd=cwd).stdout


if __name__ == "__main__":
    from augury.backends.numba_cuda.aot import all_kernels
    from augury.backends.numba_cuda.kernels.dialect import Kernel

    out, *words = sys.argv[1:]
    if len(words) == 1:
        told = report([value for value in runpy.run_path(words[0]).values() if isinstance(value, Kernel)])
    else:  # neighbours by name, as of one type of weights, have functions in common that are typed once
        wanted, (part, n) = (each for each in all_kernels() if not re.fullmatch(BETWEEN, each.name)), map(int, words)
        kernels = sorted(wanted, key=attrgetter("name"))
        told = report(kernels[len(kernels) * part // n : len(kernels) * (part + 1) // n], threads_of_launches(), some=SOME)
    Path(out).write_text(json.dumps({"{}.{}".format(*key): found for key, found in told.items()}))
