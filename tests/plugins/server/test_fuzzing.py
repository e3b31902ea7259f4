"""The OpenAPI document, fuzzed: whatever is asked, the server answers, and as the document says."""

import subprocess
import sys
from pathlib import Path

import pytest
from servers import serving

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"


@pytest.mark.sample(0)
def test_whatever_is_asked_the_server_answers(tmp_path):
    words = "-m smollm2 -t 2 -c 128 -n 2 -np 4 --metrics --props --slot-save-path"
    with serving(*words.split(), tmp_path) as server:
        program = Path(sys.executable).with_name("schemathesis")
        options = f"--checks {CHECKS} --seed 12 --max-examples 25 --request-timeout 60 --max-failures 20 --continue-on-failure".split()
        command = [program, "run", f"{server.url}/openapi.json", *options, "--no-color"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=580, check=False)
        assert ended.returncode == 0, ended.stdout + server.output
        assert "Traceback" not in server.output
        assert server.client.post("/v1/completions", json={"prompt": "The sea", "max_tokens": 2}).status_code == 200
