"""The endpoint proposer against a server on loopback that answers, refuses, stalls, lies and dies."""

from __future__ import annotations

import json
import math
import socket

import pytest

from sassafras.llm.endpoint import Endpoint, EndpointSettings
from sassafras.llm.journal import Remembered
from sassafras.llm.proposer import ProposerError, Request, SpendingCap
from sassafras.llm.spending import Meter
from tests.shared import needs

from .wire import completion, serve

needs("openai")

ASK = Request(({"role": "user", "content": "say something"},), max_tokens=50, seed=3)


def endpoint(url: str, meter: Meter | None = None, **more: object) -> tuple[Remembered, list[float]]:
    slept: list[float] = []
    settings = EndpointSettings("wire", url, **{"timeout_s": 20.0, "tries": 3, **more})
    return Remembered(Endpoint(settings, sleep=slept.append), meter or Meter()), slept


def test_an_answer_is_read_and_paid_for() -> None:
    meter = Meter(prompt_price=1.0, answer_price=10.0, dollars_cap=1.0)
    with serve((200, {}, completion("hello", finish="length"))) as wire:
        asker, slept = endpoint(wire.url, meter)
        reply = asker.propose(ASK)
    assert (reply.text, reply.model, reply.truncated) == ("hello", "wire", True)
    assert (reply.prompt_tokens, reply.answer_tokens) == (100, 10)
    assert reply.dollars == pytest.approx(200e-6)
    assert meter.facts() == {"tokens": 110, "dollars": pytest.approx(200e-6), "requests": 1}
    assert wire.asked[0]["messages"] == [{"role": "user", "content": "say something"}]
    assert (wire.asked[0]["seed"], wire.asked[0]["max_tokens"]) == (3, 50)
    assert not slept


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "abc")
    with serve((200, {}, completion("hello"))) as wire:
        asker, _ = endpoint(wire.url, key_variable="MY_KEY")
        asker.propose(ASK)
    assert wire.keys == ["Bearer abc"]
    assert "abc" not in asker.name


def test_a_hosted_endpoint_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ProposerError, match="NO_SUCH_KEY is not set"):
        Endpoint(EndpointSettings("m", "https://example.invalid/v1", key_variable="NO_SUCH_KEY"))


def test_429_waits_as_long_as_asked_then_goes_on() -> None:
    with serve((429, {"retry-after": "7"}, "{}"), (200, {}, completion("after"))) as wire:
        asker, slept = endpoint(wire.url)
        assert asker.propose(ASK).text == "after"
    assert slept == [7.0]


def test_500_backs_off_twice_as_long_each_time() -> None:
    broken = (500, {}, '{"error": {"message": "boom"}}')
    with serve(broken, broken, (200, {}, completion("after"))) as wire:
        asker, slept = endpoint(wire.url)
        assert asker.propose(ASK).text == "after"
    assert 1.0 <= slept[0] <= 1.25 and 2.0 <= slept[1] <= 2.5


def test_500_for_ever_stops_with_a_clear_message() -> None:
    with serve((503, {}, '{"error": {"message": "overloaded"}}')) as wire:
        asker, slept = endpoint(wire.url)
        with pytest.raises(ProposerError, match=r"dead: status 503 .*overloaded.* 3 tries") as caught:
            asker.propose(ASK)
    assert wire.url in str(caught.value) and len(wire.asked) == 3 and len(slept) == 2


def test_a_stalling_endpoint_times_out_and_is_tried_again() -> None:
    with serve(20.0, (200, {}, completion("quick"))) as wire:
        asker, _ = endpoint(wire.url, timeout_s=3.0)
        assert asker.propose(ASK).text == "quick"


@pytest.mark.parametrize(
    "body",
    ["this is no JSON", "{}", '{"choices": []}', '{"choices": {}}', "[" * 100_000, completion(None)],
    ids=["text", "empty", "none", "object", "deep", "null"],
)
def test_malformed_answers_are_tried_again(body: str) -> None:
    with serve((200, {}, body), (200, {}, completion("right"))) as wire:
        asker, _ = endpoint(wire.url)
        assert asker.propose(ASK).text == "right"


def test_malformed_for_ever_stops() -> None:
    with serve((200, {}, '{"choices": []}')) as wire:
        asker, _ = endpoint(wire.url)
        with pytest.raises(ProposerError, match="malformed answer"):
            asker.propose(ASK)


def test_nobody_there() -> None:
    with socket.socket() as taken:  # bound but not listening: nobody else can take the port meanwhile
        taken.bind(("127.0.0.1", 0))
        asker, _ = endpoint(f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
        with pytest.raises(ProposerError, match=r"dead: cannot connect \(Connection refused\)"):
            asker.propose(ASK)


@pytest.mark.parametrize(("status", "hint"), [(401, "check the key"), (404, "base URL"), (400, "status 400")])
def test_what_will_not_pass_is_not_tried_again(status: int, hint: str) -> None:
    with serve((status, {}, '{"error": {"message": "no"}}')) as wire:
        asker, slept = endpoint(wire.url)
        with pytest.raises(ProposerError, match=f"status {status}") as caught:
            asker.propose(ASK)
    assert hint in str(caught.value) and len(wire.asked) == 1 and not slept


def test_a_cap_on_tokens_holds_before_the_request_is_made() -> None:
    with serve((200, {}, completion("hello"))) as wire:
        asker, _ = endpoint(wire.url, Meter(tokens_cap=170))
        asker.propose(ASK)
        with pytest.raises(SpendingCap, match="110 tokens are spent"):
            asker.propose(ASK)
    assert len(wire.asked) == 1


def test_a_cap_on_money_needs_prices_and_holds() -> None:
    with pytest.raises(SpendingCap, match="needs prices"):
        Meter(dollars_cap=1.0)
    meter = Meter(dollars_cap=0.01, answer_price=100.0)
    with serve((200, {}, completion("hello"))) as wire:
        asker, _ = endpoint(wire.url, meter)
        for _ in range(5):  # 1e-3 each; the sixth could take 5e-3 more
            asker.propose(ASK)
        with pytest.raises(SpendingCap):
            for _ in range(5):
                asker.propose(ASK)
    assert meter.dollars <= 0.01


def test_an_answer_without_usage_is_still_counted() -> None:
    with serve((200, {}, completion("x" * 40, usage=False))) as wire:
        asker, _ = endpoint(wire.url, meter := Meter())
        asker.propose(ASK)
    assert meter.tokens == 20


@pytest.mark.parametrize(
    "usage", ["much", {"prompt_tokens": "x"}, {"prompt_tokens": -1e9}, {}, {"prompt_tokens": math.inf}]
)
def test_a_usage_that_is_no_count_is_not_believed(usage: object) -> None:
    body = json.loads(completion("x" * 40)) | {"usage": usage}
    with serve((200, {}, json.dumps(body))) as wire:
        asker, _ = endpoint(wire.url, meter := Meter())
        asker.propose(ASK)
    assert meter.tokens == 20


def test_half_of_a_surrogate_pair_becomes_a_question_mark() -> None:
    with serve((200, {}, completion("a\ud800b"))) as wire:
        assert endpoint(wire.url)[0].propose(ASK).text == "a?b"


def test_an_answer_that_drips_for_ever_is_a_time_out() -> None:
    with serve((200, {"Transfer-Encoding": "chunked"}, "drip")) as wire:
        asker, _ = endpoint(wire.url, timeout_s=0.5, tries=1)
        with pytest.raises(ProposerError, match=r"no whole answer within 0\.5 s"):
            asker.propose(ASK)


def test_requests_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    from sassafras.llm.spending import RateLimit

    now = [0.0]
    limit = RateLimit(2, clock=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    assert [limit.wait() for _ in range(5)] == [0.0, 0.0, 60.0, 0.0, 60.0]


def test_a_journal_answers_what_was_asked_before(tmp_path) -> None:
    path = tmp_path / "proposals.jsonl"
    other = Request(ASK.messages, max_tokens=50, seed=4)
    with serve(lambda body: completion(f"seed {body['seed']}")) as wire:
        first = Remembered(Endpoint(EndpointSettings("wire", wire.url)), Meter(), path)
        assert [first.propose(r).text for r in (ASK, other, ASK)] == ["seed 3", "seed 4", "seed 3"]
        with path.open("a") as file:
            file.write('{"request": "cut sho')  # killed while writing
        meter = Meter()
        again = Remembered(Endpoint(EndpointSettings("wire", wire.url)), meter, path)
        assert again.propose(other).text == "seed 4"
        assert again.replayed == 1 and meter.tokens == 110
    assert len(wire.asked) == 2
    for damaged in (b"not json", b"\xff", b"[" * 100_000, b'{"request": "a", "reply": {"text": 5}}'):
        path.write_bytes(damaged + b"\n")
        with pytest.raises(ProposerError, match="not a journal"):
            Remembered(first, Meter(), path)
    with pytest.raises(ProposerError, match="cannot be read"):
        Remembered(first, Meter(), tmp_path)
