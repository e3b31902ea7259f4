"""Files that appear whole or not at all; the processes that end in the middle are real ones."""

import errno
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.damage import disk_is_full

from augury.files import atomic_file
from augury.files.atomic_file import AtomicFile, is_being_written, sweep, write_atomically

# Begins to write a file, says so, and waits to be ended.
WRITER = """
import sys
from pathlib import Path
from augury.files.atomic_file import AtomicFile
with AtomicFile(Path(sys.argv[1])) as out:
    out.file.write(b"half")
    out.file.flush()
    (out.scratch() / "more").write_text("x")
    print("ready", flush=True)
    sys.stdin.read()
    out.publish()
"""


@pytest.fixture
def writer(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path / "file"], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@pytest.fixture
def no_locks(monkeypatch):
    """A file system without locks."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(atomic_file._fcntl, "flock", refuse)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_writes_is_not(writer, tmp_path):
    sweep(tmp_path)
    assert names_in(tmp_path) == [".file.part", ".file.scratch"]
    assert is_being_written(tmp_path / "file")
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert not is_being_written(tmp_path / "file")
    assert names_in(tmp_path) == [".file.part", ".file.scratch"]
    sweep(tmp_path)
    assert names_in(tmp_path) == []


def test_what_a_killed_process_left_is_taken_over(writer, tmp_path):
    writer.kill()
    writer.wait()
    with AtomicFile(tmp_path / "file") as out:
        assert names_in(tmp_path) == [".file.part"]
        out.file.write(b"all")
        out.publish()
    assert names_in(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"all"


def test_a_second_process_waits_for_the_first_and_says_so(writer, tmp_path, caplog):
    with (
        pytest.raises(BlockingIOError, match=r"another process is writing this file: '.*/file'"),
        AtomicFile(tmp_path / "file", waits=False),
    ):
        pass
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: AtomicFile(tmp_path / "file").__enter__())
        while "waiting for another" not in caplog.text:
            assert not found.done()
        writer.communicate()
        second = found.result()
    assert (tmp_path / "file").read_bytes() == b"half"
    second.__exit__(None, None, None)
    assert names_in(tmp_path) == ["file"]


def test_many_writers_of_one_file_take_turns_and_readers_see_it_whole(tmp_path):
    at_work = []

    def write(number):
        with AtomicFile(tmp_path / "file") as out:
            at_work.append(number)
            out.file.write(bytes([number]) * 9999)
            assert at_work == [number]
            at_work.clear()
            out.publish()

    write(0)
    with ThreadPoolExecutor(8) as pool:
        written = [pool.submit(write, number) for number in range(100)]
        while not all(each.done() for each in written):
            content = (tmp_path / "file").read_bytes()
            assert content == content[:1] * 9999
    assert [each.result() for each in written] == [None] * 100
    assert names_in(tmp_path) == ["file"]


def test_a_mapping_that_outlives_the_block_keeps_nobody_waiting(tmp_path):
    import mmap

    with AtomicFile(tmp_path / "file") as out:
        out.file.write(b"x")
        out.file.flush()
        mapped = mmap.mmap(out.file.fileno(), 0)
        out.publish()
    with (tmp_path / "file").open("rb") as file:
        assert atomic_file.locked(file)
    mapped.close()


@pytest.mark.usefixtures("no_locks")
def test_without_locks_everyone_writes_and_only_old_parts_are_swept(tmp_path):
    with AtomicFile(tmp_path / "file") as first, AtomicFile(tmp_path / "file") as second:
        first.file.write(b"first")
        second.file.write(b"second")
        first.publish()
        second.publish()
    assert (tmp_path / "file").read_bytes() == b"second"
    assert names_in(tmp_path) == ["file"]
    for name, age in (("new.part", 60), ("old.part", 10**6)):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (tmp_path.stat().st_mtime - age,) * 2)
    sweep(tmp_path)
    assert not (tmp_path / "old.part").exists()
    assert (tmp_path / "new.part").exists()


def test_a_failed_write_names_its_file_and_leaves_the_old_one(tmp_path, monkeypatch):
    write_atomically(tmp_path / "page.html", "old")
    monkeypatch.setattr(os, "fsync", disk_is_full)
    with pytest.raises(OSError, match=r"No space left on device: '.*page\.html'"):
        write_atomically(tmp_path / "page.html", "new")
    with pytest.raises(OSError, match=r"No space left on device: '.*other\.html'"):
        write_atomically(tmp_path / "other.html", "new")
    assert names_in(tmp_path) == ["page.html"]
    assert (tmp_path / "page.html").read_text() == "old"


@pytest.mark.parametrize("name", ["absent/page.html", "file/page.html", "."])
def test_where_there_can_be_no_file_the_error_names_it(tmp_path, name):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=str(tmp_path / name)):
        write_atomically(tmp_path / name, "text")


def test_links_and_devices_stay_what_they_are(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomically(tmp_path / "link", "é")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "é"
    (tmp_path / "file").chmod(0o600)
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    write_atomically(Path(os.devnull), "text")


def test_a_link_in_the_place_of_a_part_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / ".file.part").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="file"):
        write_atomically(tmp_path / "file", "text")
    sweep(tmp_path)
    assert (tmp_path / "precious").read_text() == "kept"
