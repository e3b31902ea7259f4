"""`/slots` and files of slots, on a real server: nothing outside the folder is read or written."""

import os
import threading
from types import SimpleNamespace

import pytest

from augury.errors import ModelFileError
from augury.plugins.server.errors import RequestError
from augury.plugins.server.llama_cpp import status

TEXT = "Whoever saves a slot finds its text again, and reads no more of it than what is new."


def complete(client, prompt=TEXT, **fields):
    answer = client.post("/completion", json={"prompt": prompt, "n_predict": 4} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def act(client, slot, action, name=None):
    return client.post(f"/slots/{slot}", params={"action": action}, json=None if name is None else {"filename": name})


def test_a_saved_slot_is_restored_to_another_and_an_erased_one_is_empty(client, slot_folder):
    client.post("/slots/2", params={"action": "erase"})
    first = complete(client, id_slot=2)
    assert (first["id_slot"], first["timings"]["cache_n"]) == (2, 0)
    saved = act(client, 2, "save", "text.bin").json()
    assert saved["n_saved"] == first["tokens_cached"]
    assert saved["n_written"] == (slot_folder / "text.bin").stat().st_size
    assert saved["timings"]["save_ms"] > 0
    act(client, 3, "erase")
    restored = act(client, 3, "restore", "text.bin").json()
    assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
    again = complete(client, id_slot=3)
    assert (again["timings"]["prompt_n"], again["content"]) == (1, first["content"])
    assert act(client, 3, "erase").json() == {"id_slot": 3, "n_erased": first["tokens_cached"]}
    assert complete(client, id_slot=3)["timings"]["cache_n"] == 0


@pytest.mark.sample(15)
@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "a/b", "a\\b", "..", ".", ".hidden", "", "a\x00b", "a\nb", "x" * 250, "c:x", "link", "pipe", "folder"],
)
@pytest.mark.parametrize("action", ["save", "restore"])
def test_no_file_outside_the_folder_is_touched(client, slot_folder, tmp_path, name, action):
    (tmp_path / "x").write_bytes(b"before")
    if name == "link" and not (slot_folder / name).is_symlink():
        (slot_folder / name).symlink_to(tmp_path / "x")
    if name == "pipe" and not (slot_folder / name).exists():
        os.mkfifo(slot_folder / name)
    if name == "folder":
        (slot_folder / name).mkdir(exist_ok=True)
    complete(client, id_slot=1)
    before = sorted(slot_folder.iterdir())
    answer = act(client, 1, action, name)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert sorted(slot_folder.iterdir()) == before
    assert (tmp_path / "x").read_bytes() == b"before"


@pytest.mark.parametrize(
    ("content", "told"), [(None, "could not be read"), (b"GGUF" * 9, "no saved slot"), (b"", "no saved slot")]
)
def test_a_file_that_is_none_of_a_slot_is_refused_without_telling_where_it_is(client, slot_folder, content, told):
    if content is not None:
        (slot_folder / "odd.bin").write_bytes(content)
    answer = act(client, 0, "restore", "missing.bin" if content is None else "odd.bin")
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400
    assert told in message
    assert str(slot_folder) not in message


@pytest.mark.parametrize(
    ("slot", "action", "name", "told"),
    [
        (9, "save", "a", "expected 0 to 3"),
        (0, "copy", "a", "action"),
        (0, "save", None, "filename is missing"),
        (9, "erase", None, "0 to 3"),
    ],
)
def test_what_cannot_be_done_with_a_slot_is_told(client, slot, action, name, told):
    answer = act(client, slot, action, name)
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]


def test_a_name_may_be_as_long_as_a_file_system_takes(client):
    complete(client, id_slot=1)
    assert act(client, 1, "save", "x" * 249).status_code == 200


def test_a_disk_that_is_full_is_no_fault_of_the_client(tmp_path):
    def save_slot(_slot, path):
        raise ModelFileError(f"{path}: a slot could not be saved: No space left on device")

    server = SimpleNamespace(engine=SimpleNamespace(save_slot=save_slot), options=SimpleNamespace(slot_save_path=tmp_path))
    with pytest.raises(RequestError) as caught:
        status.act(0, "save", server, status.SlotFile(filename="talk"))
    assert (caught.value.status_code, caught.value.detail) == (500, "talk: a slot could not be saved: No space left on device")


def test_a_slot_tells_what_it_does_and_who_drafts_in_it(client):
    seen, is_seen = [], threading.Event()

    def look():
        while not is_seen.is_set():
            found = client.get("/slots").json()[1]
            if found["draft_n"]:
                seen.append(found)
                is_seen.set()

    looking = threading.Thread(target=look)
    looking.start()
    prompt = "one two three four five six seven eight " * 12
    while not is_seen.is_set():
        complete(client, prompt, id_slot=1, n_predict=300, ignore_eos=True)
    looking.join()
    (found,) = seen
    assert (found["id"], found["is_processing"], found["n_ctx"], found["speculative"]) == (1, True, 512, True)
    assert found["drafter"] in found["drafters"]
    assert found["draft_n"] == sum(found["draft_lengths"]) >= found["draft_n_accepted"]
    assert found["next_token"][0]["n_decoded"] == 1 + len(found["draft_lengths"]) + found["draft_n_accepted"]
    assert found["next_token"][0]["n_remain"] == 300 - found["next_token"][0]["n_decoded"]
    assert "prompt" not in found
    idle = client.get("/slots").json()[1]
    assert (idle["is_processing"], idle["drafter"], idle["draft_lengths"]) == (False, None, [])
    assert client.get("/slots", params={"fail_on_no_slot": 1}).status_code == 200


def test_a_slot_in_use_is_left_alone(client):
    asked = {"prompt": TEXT, "n_predict": 400, "id_slot": 1, "stream": True, "ignore_eos": True}
    with client.stream("POST", "/completion", json=asked) as running:
        lines = running.iter_lines()  # which are given up with this name
        next(lines)
        answer = act(client, 1, "erase")
    assert (answer.status_code, answer.headers["Retry-After"]) == (409, "1")
    assert "in use" in answer.json()["error"]["message"]
