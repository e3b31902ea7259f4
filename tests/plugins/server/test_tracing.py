"""Traces of requests, by the command that docs/server.md shows."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
from support.commands import here

COMMAND = "opentelemetry-instrument --traces_exporter console --metrics_exporter none --logs_exporter none"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def spans_of(output):
    """The spans in what the console was told."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (start := re.compile(r"^\{", re.MULTILINE).search(output, at)) is not None:
        span, at = decoder.raw_decode(output, start.start())
        found.append(span)
    return found


def test_each_request_is_a_span_that_goes_on_from_its_client_s_trace():
    folder = Path(sys.executable).parent
    program, *flags = COMMAND.split()
    words = [str(folder / program), *flags, str(folder / "augury"), "serve", "--port", "0", *here()]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            url = next(line.split("listens on ")[1].split()[0] for line in server.stderr if "listens on " in line)
            next(line for line in server.stderr if " is ready" in line)
            headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
            body = {"prompt": [1, 2], "n_predict": 2}
            assert httpx.post(f"{url}/completion", json=body, headers=headers, timeout=60).status_code == 200
            assert httpx.post(f"{url}/completion", json={"prompt": 1.5}, timeout=60).status_code == 400
        finally:
            server.terminate()
            output, _ = server.communicate(timeout=60)
    asked = [span for span in spans_of(output) if span["name"] == "POST /completion"]
    assert [span["attributes"]["http.status_code"] for span in asked] == [200, 400]
    assert (asked[0]["context"]["trace_id"], asked[0]["parent_id"]) == (f"0x{TRACE}", f"0x{SPAN}")
    assert asked[1]["context"]["trace_id"] != asked[0]["context"]["trace_id"]
