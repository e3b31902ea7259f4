"""Which memory a kernel accesses before the launch before it has ended, or by loads that may not see what others write.

Both may be weights alone, which no launch writes. Addresses are followed back to the kernel's parameters.
"""

import re
from itertools import pairwise

WEIGHTS = {"MatrixArgs.words", "HalvesArgs.words", "NormArgs.weight", "w"}  # parameters; `w` is an embedding
FIRST_PARAMETER = {9: 0x210, 10: 0x380}  # its place among a kernel's constants, by the major version of capabilities
_WAIT = "ACQBULK"
_ACCESS = r"(?:LDG?|STG?|ATOMG?|REDG?|LDGSTS)\b"
_TARGET = r"\b(?:BRA|BSSY|CALL\.REL)\b.*\b0x([0-9a-f]+)$"
_LAST = r"(?:BRA 0x|EXIT$|RET\b|KILL$)"  # of a path
_END = r"\b(?:EXIT|BRX|JMX|JMP)\b"  # of a kernel, or a jump to where it is not known


def names_of(kernel):
    """The names of a kernel's parameters, those of records with the record's; None of numbers."""
    for name, kind in zip(kernel.names, kernel.kinds, strict=True):
        fields, where = ([name], "") if isinstance(kind, str) else (kind._fields, f"{kind.__name__}.")
        letters = kind if isinstance(kind, str) else kind.letters
        yield from (None if letter in "ir" else where + field for field, letter in zip(fields, letters, strict=True))


def early(code, places):
    """The accesses to other memory than weights that come before a wait on some path, and the paths' ends that do.

    Args:
        code: A kernel's instructions, by their addresses.
        places: The names of its pointers, by their places among the kernel's constants.
    """
    following, first = dict(pairwise(code)), next(iter(code))
    known, todo = {first: {}}, [first]  # of registers, before an instruction: the pointers that they may be made of
    while todo:
        at = todo.pop()
        if _WAIT in code[at]:
            continue
        made, after = code[at], _after(code[at], known[at], places)
        next_ones = [] if re.match(_LAST, made) else [following[at]]
        for to in (*next_ones, *(int(target, 16) for target in re.findall(_TARGET, made))):
            before = known.get(to)
            merged = {name: after.get(name, set()) | (before or {}).get(name, set()) for name in after | (before or {})}
            if merged != before:
                known[to] = merged
                todo.append(to)
    reached = [(code[at], state) for at, state in sorted(known.items()) if _WAIT not in code[at]]
    accesses = [each for each, state in reached if not _is_of_weights(each, state)]
    return accesses, [each for each, _ in reached if re.search(_END, each)]


def _after(instruction, state, places):
    """What is known of registers after an instruction; what it loads is no address."""
    name, _, operands = re.sub(r"^@\S+ ", "", instruction).partition(" ")
    made, _, given = operands.partition(",")
    is_wide, found = re.search(r"\.(64|128|WIDE)\b", name) is not None, set()
    if not re.match(_ACCESS, name):
        constants = [int(at, 16) & ~7 for at in re.findall(r"c\[0x0\]\[0x([0-9a-f]+)\]", given)]
        found = {places[at] for at in constants if places.get(at)}
        found = found.union(*(state.get(each, set()) for each in _registers(given, is_wide=is_wide)))
    is_certain = not instruction.startswith("@")
    return state | {each: found if is_certain else found | state.get(each, set()) for each in _registers(made, is_wide=is_wide)}


def _is_of_weights(instruction, state):
    """Whether an instruction accesses no memory of the device, or only loads weights."""
    name = re.sub(r"^@\S+ ", "", instruction)
    if not re.match(_ACCESS, name):
        return True
    (address,) = re.findall(r"\[(U?R\d[^\]]*)\]", re.sub(r"desc\[UR\d+\]", "", name)) or [""]
    found = set().union(*(state.get(each, set()) for each in _registers(address, is_wide=True)))
    return name.startswith("LD") and bool(found) and found <= WEIGHTS


def _registers(operands, *, is_wide):
    """The registers in some operands, those of 64 bits both."""
    found = re.findall(r"\b(U?R)(\d+)(\.64)?", operands)
    return {f"{kind}{int(number) + i}" for kind, number, wide in found for i in range(1 + (is_wide or bool(wide)))}


def _is_load(statement):
    """Whether a statement of PTX reads what is no address."""
    return re.match(r"ld\.(?!param)|atom\.", statement) is not None


def read_by_constant_loads(ptx, names):
    """The pointers, by the `names` of parameters, that PTX reads from by loads which may not see what others write."""
    statements = [re.sub(r"^(\$\S+:|@\S+|\s)*", "", each) for each in re.sub("//.*", "", ptx).split(";")]
    origins, n = {}, -1
    moves = [(re.findall(r"%rd?\d+", each), re.search(r"_param_(\d+)\]", each)) for each in statements if not _is_load(each)]
    moves = [move for move in moves if move[0]]
    while n != (n := sum(map(len, origins.values()))):
        for (made, *given), parameter in moves:
            found = {names[int(parameter[1])]} if parameter else set().union(*(origins.get(each, set()) for each in given))
            origins[made] = origins.get(made, set()) | found
    addresses = [re.search(r"\[(%\w+)", each)[1] for each in statements if each.startswith("ld.global.nc")]
    return sorted({name for each in addresses for name in origins.get(each, {"unknown"}) if name is not None})
