"""Any OpenAI-compatible endpoint as a proposer: a hosted model, vLLM, llama.cpp, ollama, ..."""

from __future__ import annotations

import json
import math
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sassafras.core import ToolMissing

from .proposer import ProposerError, Reply, Request
from .spending import RateLimit

#: longest wait between two tries, seconds, whatever the endpoint asks for
_LONGEST_WAIT = 120.0


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Where and how to ask.

    Attributes:
        model: the model's name at the endpoint.
        base_url: for example ``http://127.0.0.1:8000/v1``; None for the client's default.
        key_variable: environment variable that holds the key. Endpoints on this machine often need none.
        timeout_s: seconds that one try may take.
        tries: how often a request is tried before the endpoint counts as dead.
        first_wait_s: seconds before the second try; doubles from try to try.
        requests_per_minute: most requests in any minute, or None.
    """

    model: str
    base_url: str | None = None
    key_variable: str = "OPENAI_API_KEY"
    timeout_s: float = 300.0
    tries: int = 5
    first_wait_s: float = 1.0
    requests_per_minute: int | None = None


class Endpoint:
    """A chat endpoint. Retries what may pass (429, 5xx, time-outs, broken answers), stops at what will not.

    Args:
        settings: where and how to ask.
        sleep: how to wait, replaceable.

    Raises:
        ToolMissing: the ``openai`` package is not installed.
        ProposerError: no key, for an endpoint that is not on this machine.
    """

    def __init__(self, settings: EndpointSettings, *, sleep: Callable[[float], None] = time.sleep) -> None:
        try:
            import openai
        except ImportError as error:
            raise ToolMissing(
                "asking an endpoint needs the openai client", hint="in the checkout: pip install -e '.[llm]'"
            ) from error
        self._openai: Any = openai
        self.settings = settings
        if not (settings.base_url or "https:").startswith(("http:", "https:")):
            raise ProposerError("this is no URL", where=settings.base_url, hint="http://HOST:8000/v1")
        key = os.environ.get(settings.key_variable)
        if not key and not _is_local(settings.base_url):
            raise ProposerError(
                f"no key: the environment variable {settings.key_variable} is not set",
                where=settings.base_url or "the default endpoint",
                hint=f"export {settings.key_variable}=..., or name another variable",
            )
        self._client = openai.OpenAI(
            api_key=key or "none", base_url=settings.base_url, timeout=settings.timeout_s, max_retries=0
        )
        self._sleep = sleep
        self._limit = RateLimit(settings.requests_per_minute, sleep=sleep)
        self._jitter = random.Random(0)

    @property
    def name(self) -> str:
        """``endpoint:MODEL``."""
        return f"endpoint:{self.settings.model}"

    def propose(self, request: Request) -> Reply:
        """See `Proposer.propose`.

        Raises:
            ProposerError: the endpoint refuses, or stays dead after all tries.
        """
        began, failures = time.monotonic(), 0
        while True:
            self._limit.wait()
            try:
                return self._read(self._ask(request), began)
            except _Again as again:
                failures += 1
                if failures < self.settings.tries:
                    own = self.settings.first_wait_s * 2 ** (failures - 1) * (1 + self._jitter.random() / 4)
                    self._sleep(min(max(own, again.asked), _LONGEST_WAIT))
                    continue
                raise ProposerError(
                    f"the endpoint is dead: {again}, {failures} tries",
                    where=self._where,
                    hint="check that it runs and that the base URL ends as it should (often /v1); "
                    "the same command resumes",
                ) from again

    @property
    def _where(self) -> str:
        return f"{self.settings.base_url or 'the default endpoint'}, model {self.settings.model}"

    def _ask(self, request: Request) -> Any:
        api = self._openai
        arguments: dict[str, Any] = {
            "model": self.settings.model,
            "messages": [dict(m) for m in request.messages],
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
        }
        end, body = time.monotonic() + self.settings.timeout_s, bytearray()
        try:
            # the client's own limit is one for each read: an endpoint that drips would never end
            with self._client.chat.completions.with_streaming_response.create(**arguments) as response:
                for part in response.iter_bytes():
                    body += part
                    if time.monotonic() > end:
                        raise _Again(f"no whole answer within {self.settings.timeout_s:g} s")
            return json.loads(body)
        except _Again:
            raise
        except api.APITimeoutError as error:
            raise _Again(f"no answer within {self.settings.timeout_s:g} s") from error
        except api.APIConnectionError as error:
            told = re.sub(r"\[Errno -?\d+\] ", "", str(error.__cause__ or error))
            raise _Again(f"cannot connect ({told})") from error
        except api.APIStatusError as error:
            raise self._status(error) from error
        except (
            api.APIError,
            ValueError,
            RecursionError,
        ) as error:  # a body that is no JSON, or not what it should be
            raise _Again(f"a malformed answer ({_short(error)})") from error
        except Exception as error:  # of the client's HTTP library, whose name differs from version to version
            raise _Again(f"the answer broke off ({_short(error) or type(error).__name__})") from error

    def _status(self, error: Any) -> Exception:
        status = int(error.status_code)
        if status in (408, 409, 429) or status >= 500:
            return _Again(f"status {status} ({_short(error)})", error.response.headers.get("retry-after"))
        key = f"check the key in {self.settings.key_variable}"
        hints = {401: key, 403: key, 404: "check the base URL and the model's name"}
        return ProposerError(
            f"the endpoint refuses with status {status}: {_short(error)}",
            where=self._where,
            hint=hints.get(status),
        )

    def _read(self, answer: Any, began: float) -> Reply:
        try:
            choice = answer["choices"][0]
            text, usage = choice["message"]["content"], answer.get("usage")
        except (AttributeError, LookupError, TypeError) as error:
            raise _Again("a malformed answer (no choice or no message in it)") from error
        if not isinstance(text, str):
            raise _Again("a malformed answer (its message has no text)")
        text = text.encode(errors="replace").decode()  # half of a surrogate pair is in no file
        used = usage if isinstance(usage, dict) else {}
        prompt = _count(used.get("prompt_tokens"), 0)
        # without usage count too much rather than too little
        said = _count(used.get("completion_tokens"), max(1, len(text) // 2))
        model = str(answer.get("model") or self.settings.model)
        truncated = choice.get("finish_reason") == "length"
        return Reply(text, model, prompt, said, seconds=time.monotonic() - began, truncated=truncated)


class _Again(Exception):
    """May pass: try again, after `asked` seconds if the endpoint said so."""

    def __init__(self, what: str, asked: str | None = None) -> None:
        super().__init__(what)
        self.asked = float(asked) if asked and re.fullmatch(r"\d+(\.\d+)?", asked) else 0.0


def _count(said: Any, otherwise: int) -> int:
    return int(said) if isinstance(said, int | float) and 0 <= said < math.inf else otherwise


def _is_local(url: str | None) -> bool:
    return url is not None and any(f"//{host}" in url for host in ("127.", "localhost", "[::1]", "0.0.0.0"))


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
