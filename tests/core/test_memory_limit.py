"""Limits of memory: which there are, and that a command under any of them ends with one line."""

import errno
import os
import subprocess
import sys

import pytest
from support.commands import here

from augury.errors import CapacityError, ModelFileError
from augury.memory_limit import lack_of_memory, n_bytes_for_prompts, n_bytes_of_machine, require_address_space

V2 = "30 23 0:26 {root} {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "31 23 0:27 {root} {mount} rw - cgroup cgroup rw,memory"
CPU = "32 23 0:28 / {mount}/cpu rw - cgroup cgroup rw,cpu,cpuacct"


@pytest.mark.parametrize(
    ("cgroup", "mounts", "root", "files", "limit"),
    [
        ("0::/", V2, "/", {"memory.max": 2**20}, 2**20),
        ("0::/a/b", V2, "/", {"a/b/memory.max": 3 * 2**20, "a/memory.max": 2**20, "memory.max": "max"}, 2**20),
        ("0::/a/b", V2, "/", {"a/b/memory.max": 2**20, "a/memory.max": "max"}, 2**20),
        ("0::/a", V2, "/", {"a/memory.max": "max", "a/memory.high": 2**20}, 2**20),
        ("0::/a/b", V2, "/a", {"b/memory.max": 2**20}, 2**20),  # what a container is shown
        ("0::/../other", V2, "/", {"memory.max": 2**20}, 2**20),  # a group beside those it is shown
        ("0::/a", V2, "/", {"b/memory.max": 2**20, "a/memory.max": "nonsense"}, None),
        ("5:memory:/a/b\n2:cpu,cpuacct:/c", f"{CPU}\n{V1}", "/", {"a/b/memory.limit_in_bytes": 2**20}, 2**20),
        ("5:memory:/a/b", V1, "/", {"a/b/memory.limit_in_bytes": 2**63 - 4096, "a/memory.limit_in_bytes": 2**20}, 2**20),
        ("5:memory:/a/b", V1, "/a/b", {"memory.stat": f"cache 1\nhierarchical_memory_limit {2**20}\n"}, 2**20),
        ("5:memory:/a\n0::/a", f"{V2}\n{V1}", "/", {"a/memory.limit_in_bytes": 2**20}, 2**20),
        ("2:cpu,cpuacct:/c", CPU, "/", {"cpu/c/memory.limit_in_bytes": 2**20}, None),
        ("nonsense", "nonsense", "/", {}, None),
    ],
)
def test_the_narrowest_group_of_either_version_counts(tmp_path, cgroup, mounts, root, files, limit):
    mount = tmp_path / "with blank"
    for name, content in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(f"{content}\n")
    (tmp_path / "cgroup").write_text(f"{cgroup}\n")
    (tmp_path / "mountinfo").write_text(mounts.format(root=root, mount=str(mount).replace(" ", r"\040")) + "\n")
    whole = n_bytes_of_machine(str(tmp_path / "absent"))
    assert whole == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert n_bytes_of_machine(str(tmp_path)) == (limit or whole)


# In a process of its own: libraries that get no memory exit, abort or crash.
@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("backend", "n_mib"),
    [*(("numba-cpu", n_mib) for n_mib in (40, 120, 280, 760)), *(("reference", n_mib) for n_mib in (215, 260, 1000))],
)
def test_a_command_under_any_limit_of_address_space_works_or_ends_with_one_line(monkeypatch, backend, n_mib):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)  # which conftest.py sets, and the command, too
    words = [sys.executable, "-m", "augury", "run", *here(backend=backend), "--prompt-tokens", "1,2", "-n", "2", "-c", "64"]
    limited = ["sh", "-c", f'ulimit -v {n_mib * 1024}; exec "$@"', "sh", *words]
    ended = subprocess.run(limited, capture_output=True, text=True, check=False)
    said = [line for line in ended.stderr.splitlines() if not line.startswith("WARNING")]
    assert ended.returncode in {0, 1}, ended.stderr
    if ended.returncode:
        assert [line.partition(":")[0] for line in said] == ["augury"]
        assert "ulimit -v" in said[0]
    assert ended.returncode == 1 or n_mib > 200
    assert ended.returncode == 0 or n_mib < 1000


def test_address_space_that_is_not_there_is_refused():
    require_address_space(2**20, "a test")
    with pytest.raises(CapacityError, match="a test needs 1099511627776 MiB of address space"):
        require_address_space(2**60, "a test")


def chained(outer, inner):
    try:
        try:
            raise inner
        except type(inner) as error:
            raise outer from error
    except type(outer) as error:
        return error


@pytest.mark.parametrize(
    ("error", "is_lack"),
    [
        (MemoryError(), True),
        (MemoryError("Unable to allocate 183. GiB"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (RuntimeError("can't start new thread"), True),
        (ImportError("x.so: failed to map segment from shared object"), True),
        (chained(OSError("Could not find/load shared object file"), OSError("x.so: failed to map segment")), True),
        (ImportError("No module named 'x'"), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (chained(ModelFileError("said already"), MemoryError()), False),
        (KeyError("x"), False),
    ],
)
def test_what_a_lack_of_memory_looks_like_is_told_from_other_errors(error, is_lack):
    lack = lack_of_memory(error)
    assert (lack is not None) == is_lack
    if lack is not None:
        assert isinstance(lack, CapacityError)
        assert lack.__cause__ is error
        assert str(lack).startswith("there is too little memory: ")


class MuteError(Exception):
    def __str__(self):
        raise ValueError


def test_errors_that_are_their_own_cause_or_cannot_speak_are_looked_at_once():
    error = MuteError()
    error.__cause__ = error
    assert lack_of_memory(error) is None


@pytest.mark.parametrize(
    ("n_mib", "n_taken", "expected"), [(3, 0, 3), (100, 0, 16), (-1, 0, 16), (100, 60, 4), (3, 70, 0), (0, 0, 0)]
)
def test_prompts_take_what_is_asked_for_of_a_quarter_and_of_what_is_left(monkeypatch, n_mib, n_taken, expected):
    monkeypatch.setattr("augury.memory_limit.n_bytes_of_machine", lambda: 64 << 20)
    assert n_bytes_for_prompts(n_mib, n_taken << 20) == expected << 20
