"""Many clients at once: every answer is that of an idle server, and nothing is left over.

For longer, with figures: `PYTHONPATH=tests python tests/plugins/server/test_concurrency.py REQUESTS`, of each client.
"""

import asyncio
import json
import sys
from random import Random

import httpx
import pytest
from support.servers import serving, settled

N_CLIENTS = 64
WORDS = ["-m", "smollm2", "-c", "512", "-np", "4", "--temp", "0", "--metrics"]

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}
CHAT = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 5}
TEXT = {"prompt": "The sea is the sea is the", "max_tokens": 5}
KINDS = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"stream": True}),
    ("/v1/chat/completions", CHAT | {"n": 2, "seed": 3, "temperature": 1.2}),
    ("/v1/chat/completions", CHAT | {"json_schema": SCHEMA, "max_tokens": 10}),
    ("/v1/completions", TEXT),
    ("/v1/completions", TEXT | {"logprobs": 2, "speculative": False}),
    ("/v1/completions", TEXT | {"stream": True, "seed": 5, "temperature": 0.9, "logprobs": 0}),
    ("/v1/completions", TEXT | {"prompt": ["One, two,", "A b c d"]}),
    ("/v1/completions", {"prompt": "word " * 300, "max_tokens": 2}),  # in chunks, between the rounds of others
    ("/v1/responses", {"input": "Name a colour.", "max_output_tokens": 5}),
    ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 5}),
    ("/completion", {"prompt": "The sky is", "n_predict": 5, "n_probs": 2}),
    ("/v1/embeddings", {"input": ["The sea", "The sky"]}),
]


async def said(client, path, body):
    """What a request answers, without what differs from one answer to the next: ids and times."""
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        found = answer.json()
        if "output" in found:
            return [item["content"] for item in found["output"]]
        return [found.get(name) for name in ("choices", "content", "completion_probabilities", "data")]
    assert answer.text.endswith("data: [DONE]\n\n"), answer.text
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return [choice for event in events for choice in event["choices"]]


async def leave(client, path, body, moment):
    """Ask, and hang up before the answer is complete, if it takes longer than a moment."""
    try:
        await asyncio.wait_for(client.post(path, json=body), moment)
    except TimeoutError:
        return True
    return False


async def talk(server, expected, seed, n):
    """Ask n things, one after another; returns how many answers came whole, and how many requests were given up."""
    random = Random(seed)
    n_whole = n_left = 0
    async with httpx.AsyncClient(base_url=server.url, timeout=300, verify=False) as client:
        for i in random.choices(range(len(KINDS)), k=n):
            if random.random() < 0.3:
                n_left += await leave(client, *KINDS[i], random.random() * 0.5)
            else:
                assert await said(client, *KINDS[i]) == expected[i], KINDS[i]
                n_whole += 1
    return n_whole, n_left


async def ask_one_by_one(server):
    async with httpx.AsyncClient(base_url=server.url, timeout=300, verify=False) as client:
        return [await said(client, *kind) for kind in KINDS]


async def talk_all(server, expected, part, n):
    told = await asyncio.gather(*(talk(server, expected, part * N_CLIENTS + client, n) for client in range(N_CLIENTS)))
    return [sum(each) for each in zip(*told, strict=True)]


def check_many_clients(server, n_parts, n, tell=lambda *_: None):
    """Let each client ask n things in each part, after the first of which memory may grow little."""
    expected = asyncio.run(ask_one_by_one(server))
    n_tasks, n_descriptors = server.n_tasks, server.n_descriptors
    tell("idle", server)
    for part in range(n_parts):
        n_whole, n_left = asyncio.run(talk_all(server, expected, part, n))
        assert n_left > 0, "some are to hang up"
        tell(f"{n_whole} answers, {n_left} given up", server)
        if part == 0:
            n_bytes = server.n_resident_bytes
    assert settled(lambda: server.n_tasks, n_tasks) <= n_tasks
    assert settled(lambda: server.n_descriptors, n_descriptors) <= n_descriptors
    assert server.n_resident_bytes < n_bytes + (64 << 20)  # `suffix` keeps the last 262,144 tokens, some 40 MiB
    assert asyncio.run(ask_one_by_one(server)) == expected


def test_many_clients_get_the_answers_of_an_idle_server_and_leave_nothing_behind(server):
    check_many_clients(server, 1, 1)


@pytest.mark.waits
@pytest.mark.sample(0)
def test_so_they_do_again_and_again():
    with serving(*WORDS, "-t", "1", "--override-kv", "llama.block_count=int:2") as server:  # a few layers: more answers
        check_many_clients(server, 3, 4)


def show(what, server):
    stats = server.client.get("/slots").json()
    n_busy = sum(slot["is_processing"] for slot in stats)
    figures = f"{server.n_tasks} tasks, {server.n_descriptors} descriptors, {server.n_threads} threads, {n_busy} busy slots"
    print(f"{what}: {server.n_resident_bytes >> 20} MiB, {figures}", flush=True)  # noqa: T201


if __name__ == "__main__":
    with serving(*WORDS, "-t", "2") as found:
        check_many_clients(found, 4, int(sys.argv[1]) // 4, show)
        show("afterwards", found)
