"""The OpenAPI document, fuzzed: whatever is asked, the server answers, and as the document says.

More than 9,000 requests, the same in every run. For others: `schemathesis run URL/openapi.json --max-examples 200 --seed N`.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from support.servers import serving

CONFORMANCE = ("status_code", "content_type", "response_headers", "response_schema")
CHECKS = ",".join(["not_a_server_error", *(f"{what}_conformance" for what in CONFORMANCE)])


@pytest.mark.waits
@pytest.mark.sample(0)
def test_whatever_is_asked_the_server_answers(tmp_path):
    words = "-m smollm2 -t 2 -c 128 -n 2 -np 4 --metrics --props --slot-save-path"
    gap = [
        f"--override-kv=tokenizer.ggml.fim_{name}_token_id=int:{token}" for token, name in enumerate(("pre", "suf", "mid"), 4)
    ]
    few_layers = "--override-kv=llama.block_count=int:2"  # what is computed is another test's
    with serving(*words.split(), tmp_path, *gap, few_layers) as server:
        program = Path(sys.executable).with_name("schemathesis")
        options = f"--checks {CHECKS} --generation-deterministic --max-examples 20 --workers 2 --request-timeout 60 --no-color"
        options += " --phases coverage,fuzzing --suppress-health-check too_slow"  # as a busy machine is
        command = [program, "run", f"{server.url}/openapi.json", *options.split()]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800, check=False)
        assert ended.returncode == 0, ended.stdout + server.output
        assert "Traceback" not in server.output
        assert server.client.post("/v1/completions", json={"prompt": "The sea", "max_tokens": 2}).status_code == 200
