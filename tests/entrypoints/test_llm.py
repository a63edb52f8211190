"""The offline front door on a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider.api import ConfigError
from outrider.config import EngineConfig
from outrider.engine.request_output import RequestOutput
from outrider.testing.proposers import OracleProposer
from outrider.testing.tiny_models import ALPHABET

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
TEMPLATE = "{% for m in messages %}{{ m['content'] }}.{% endfor %}{% if add_generation_prompt %}A{% endif %}"


def build(folder: Path, backend: str, **settings: Any) -> LLM:
    defaults = {"block_size": 4, "num_kv_blocks": 64, "max_num_seqs": 8, "attention_backend": backend}
    return LLM(str(folder), **{**defaults, **settings})


@pytest.fixture(scope="module")
def llm(tiny: Path, backend: str) -> Iterator[LLM]:
    with build(tiny, backend) as llm:
        llm.get_tokenizer().chat_template = TEMPLATE
        yield llm


@pytest.fixture(autouse=True)
def nothing_leaks(llm: LLM) -> Iterator[None]:
    yield
    assert llm.engine.core.scheduler.kv_cache.num_free_blocks == 64
    assert not llm.engine.core.has_unfinished_requests()


def ids(text: str) -> list[int]:
    return [ALPHABET.index(character) for character in text]


def answer(output: RequestOutput) -> tuple[list[int], str, str | None]:
    completion = output.outputs[0]
    return completion.token_ids, completion.text, completion.finish_reason


def answers(outputs: list[RequestOutput]) -> list[Any]:
    return [answer(output) for output in outputs]


def test_one_output_per_prompt_in_their_order(llm: LLM) -> None:
    prompts = ["hello", {"prompt_token_ids": ids("abc")}, {"prompt": "xyz"}]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [ids("hello"), ids("abc"), ids("xyz")]
    assert [output.prompt for output in outputs] == ["hello", None, "xyz"]
    assert answers(outputs) == [answer(llm.generate(prompt, GREEDY, False)[0]) for prompt in prompts]
    for token_ids, text, finish_reason in answers(outputs):
        assert text == "".join(ALPHABET[token_id] for token_id in token_ids)
        assert (len(token_ids), finish_reason) == (12, "length")


def test_no_prompts_no_outputs(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_more_prompts_than_places_all_get_their_turn(llm: LLM) -> None:
    outputs = llm.generate(["hello"] * 20, GREEDY, use_tqdm=False)
    assert answers(outputs) == [answer(outputs[0])] * 20


def test_params_are_for_all_or_one_each(llm: LLM) -> None:
    each = [SamplingParams(temperature=0.0, max_tokens=n) for n in (1, 5)]
    outputs = llm.generate(["hello", "hello"], each, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5]
    with pytest.raises(ConfigError, match="1 sampling params for 2 prompts"):
        llm.generate(["hello", "hello"], each[:1])
    assert len(llm.generate("hello", use_tqdm=False)[0].outputs[0].token_ids) == SamplingParams().max_tokens


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "no tokens"),
        ({"prompt_token_ids": []}, "no tokens"),
        ("~", "cannot encode the prompt '~'"),
        ({"prompt_token_ids": [1, 64]}, "is 64, outside the vocabulary"),
        ({"prompt_token_ids": [-1]}, "is -1, outside the vocabulary"),
        ({"prompt_token_ids": [True]}, "is True, not an integer"),
        ({"prompt_token_ids": [2**70]}, "outside the vocabulary"),
        ({"prompt_token_ids": [1] * 300}, "the whole KV cache holds 256"),
        ({"prompt_token_ids": [1] * 600}, "max_model_len=512"),
        (5, "expected a text"),
        (None, "expected a text"),
    ],
)
def test_a_bad_prompt_gets_an_error_and_the_others_go_on(
    llm: LLM, prompt: Any, words: str, caplog: Any
) -> None:
    good = answer(llm.generate("hello", GREEDY, use_tqdm=False)[0])
    first, bad, last = llm.generate(["hello", prompt, "hello"], GREEDY, use_tqdm=False)
    assert answers([first, last]) == [good, good]
    assert answer(bad) == ([], "", "error")
    assert bad.error is not None
    assert words in bad.error
    assert bad.error in caplog.text
    assert first.error is None


def test_a_bad_parameter_gets_an_error_and_the_others_go_on(llm: LLM) -> None:
    each = [GREEDY, GREEDY.model_copy(update={"min_tokens": 99}), GREEDY]
    good, bad, other = llm.generate(["hello"] * 3, each, use_tqdm=False)
    assert answer(good) == answer(other)
    assert bad.error is not None
    assert "min_tokens=99" in bad.error


def test_without_a_tokenizer_prompts_are_ids(mute: Path, backend: str) -> None:
    with build(mute, backend) as mute_llm:
        assert mute_llm.get_tokenizer() is None
        text, token_ids = mute_llm.generate(["abc", {"prompt_token_ids": [1, 2]}], GREEDY, use_tqdm=False)
        assert text.error is not None
        assert "no tokenizer" in text.error
        assert (len(token_ids.outputs[0].token_ids), token_ids.outputs[0].text) == (12, "")
        with pytest.raises(ConfigError, match="no chat template"):
            mute_llm.chat([{"role": "user", "content": "abc"}])


def test_chat_takes_one_conversation_or_several(llm: LLM) -> None:
    one = [{"role": "user", "content": "hello"}]
    two = [*one, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}]
    [single] = llm.chat(one, GREEDY, use_tqdm=False)
    assert single.prompt == "hello.A"
    several = llm.chat([one, two], GREEDY, use_tqdm=False)
    assert [output.prompt for output in several] == ["hello.A", "hello.hi.more.A"]
    assert answer(several[0]) == answer(single)
    assert answer(single) == answer(llm.generate("hello.A", GREEDY, use_tqdm=False)[0])


def test_chat_needs_a_template(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm.get_tokenizer(), "chat_template", None)
    with pytest.raises(ConfigError, match="no chat template"):
        llm.chat([{"role": "user", "content": "abc"}])


def test_a_stream_adds_up_to_what_generate_returns(llm: LLM) -> None:
    outputs = list(llm.stream("hello", GREEDY))
    assert "".join(output.outputs[0].new_text for output in outputs) == outputs[-1].outputs[0].text
    assert [i for output in outputs for i in output.outputs[0].new_token_ids] == outputs[-1].outputs[
        0
    ].token_ids
    assert [output.finished for output in outputs] == [False] * 11 + [True]
    assert answer(outputs[-1]) == answer(llm.generate("hello", GREEDY, use_tqdm=False)[0])


def test_a_bad_prompt_streams_its_error(llm: LLM) -> None:
    [output] = llm.stream("", GREEDY)
    assert (output.finished, output.outputs[0].finish_reason) == (True, "error")


def test_leaving_a_stream_ends_its_request(llm: LLM) -> None:
    aborted = llm.stats.num_finished["abort"]
    for _ in llm.stream("hello", GREEDY):
        break
    assert llm.stats.num_finished["abort"] == aborted + 1


def test_streams_and_generate_may_be_under_way_at_once(llm: LLM) -> None:
    alone = {
        prompt: answer(llm.generate(prompt, GREEDY, use_tqdm=False)[0]) for prompt in ("abc", "xyz", "hello")
    }
    one, two = llm.stream("abc", GREEDY), llm.stream("xyz", GREEDY)
    next(one), next(two), next(one)
    assert answer(llm.generate("hello", GREEDY, use_tqdm=False)[0]) == alone["hello"]
    assert answer(list(two)[-1]) == alone["xyz"]
    rest = list(one)
    assert answer(rest[-1]) == alone["abc"]
    # Nothing that the other loops' steps made for it was lost.
    assert sum(len(output.outputs[0].new_token_ids) for output in rest) == 10


class Interrupting:
    """Proposes nothing, and at one call raises what a test wants."""

    outrider_api = 1
    calls_to_go = 0
    error: BaseException = KeyboardInterrupt()

    def propose(self, context: Any) -> Any:
        from outrider.api import DraftTokens

        cls = type(self)
        cls.calls_to_go -= 1
        if cls.calls_to_go == 0:
            raise cls.error
        return DraftTokens(token_ids=[[] for _ in context.requests])


def test_an_interruption_ends_what_ran_and_nothing_else(
    tiny: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outrider import hookimpl

    monkeypatch.setattr(Interrupting, "propose", hookimpl(Interrupting.propose))
    with build(tiny, backend, speculative_config={"method": Interrupting}) as other:
        good = answers(other.generate(["hello", "abc"], GREEDY, use_tqdm=False))
        stream = other.stream("xyz", GREEDY)
        next(stream)
        Interrupting.calls_to_go = 3
        with pytest.raises(KeyboardInterrupt):
            other.generate(["hello", "abc"], GREEDY, use_tqdm=False)
        assert other.engine.core.scheduler.kv_cache.num_free_blocks == 64
        last = list(stream)[-1]
        assert (last.finished, last.outputs[0].finish_reason) == (True, "error")
        assert last.error is not None
        assert "KeyboardInterrupt" in last.error
        assert answers(other.generate(["hello", "abc"], GREEDY, use_tqdm=False)) == good


def test_an_interrupted_forward_leaves_a_usable_object(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    good = answers(llm.generate(["hello", "abc"], GREEDY, use_tqdm=False))
    execute = llm.engine.core.runner.execute
    calls = iter([False, False, True])

    def interrupted(plan: Any) -> Any:
        if next(calls):
            raise KeyboardInterrupt
        return execute(plan)

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.core.runner, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["hello", "abc"], GREEDY, use_tqdm=False)
    assert answers(llm.generate(["hello", "abc"], GREEDY, use_tqdm=False)) == good


def test_an_interruption_between_two_prompts_ends_the_first(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llm.get_tokenizer(), "encode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([{"prompt_token_ids": [1, 2]}, "hello"], GREEDY, use_tqdm=False)
    assert not llm.engine.core.has_unfinished_requests()


def test_metrics_tell_what_drafting_did(llm: LLM, tiny: Path, backend: str) -> None:
    [plain] = llm.generate("hello", GREEDY, use_tqdm=False)
    truth = ids("hello") + plain.outputs[0].token_ids
    speculative = {
        "method": OracleProposer,
        "num_speculative_tokens": 3,
        "adaptive": False,
        "truth": [truth],
        "wrong_at": {len(ids("hello")) + 2},
    }
    with build(tiny, backend, speculative_config=speculative) as drafting:
        [output] = drafting.generate("hello", GREEDY, use_tqdm=False)
        total = drafting.stats.spec
    assert answer(output) == answer(plain)
    # 1 sampled; 1 accepted + 1 recovered; then 3 + 1, 3 + 1, and one more.
    assert output.outputs[0].token_origins[:3] == ["sampled", "accepted", "recovered"]
    assert output.outputs[0].token_origins[3:11] == (["accepted"] * 3 + ["bonus"]) * 2
    metrics = output.metrics
    assert (metrics.num_drafts, metrics.num_draft_tokens, metrics.num_accepted_tokens) == (3, 9, 7)
    assert metrics.acceptance_rate_per_pos == [1.0, 2 / 3, 2 / 3]
    assert metrics.mean_acceptance_length == 10 / 3
    assert (total.num_drafts, total.num_emitted_tokens) == (3, 12)


def test_the_reported_seed_repeats_the_text(llm: LLM) -> None:
    warm = SamplingParams(temperature=1.0, max_tokens=12)
    first, second = llm.generate(["hello", "hello"], warm, use_tqdm=False)
    assert first.seed != second.seed
    assert answer(first) != answer(second)
    again = llm.generate("hello", warm.model_copy(update={"seed": first.seed}), use_tqdm=False)[0]
    assert answer(again) == answer(first)


def test_the_progress_bar_can_be_switched_off(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["hello", ""], GREEDY, use_tqdm=False)
    assert "request/s" not in capsys.readouterr().err
    llm.generate(["hello", ""], GREEDY)
    assert "2/2" in capsys.readouterr().err


def test_a_configuration_object_or_flat_names(tiny: Path, backend: str, llm: LLM) -> None:
    config = EngineConfig.from_flat(model=str(tiny), attention_backend=backend, max_model_len=16)
    with LLM.from_config(config) as other:
        assert (other.config, other.max_model_len) == (config, 16)
        assert other.generate("hello", GREEDY, use_tqdm=False)[0].outputs[0].finish_reason == "length"
    with pytest.raises(ConfigError, match="did you mean 'max_model_len'"):
        LLM(str(tiny), max_model_length=16)


def test_after_shutdown_it_says_so(tiny: Path, backend: str) -> None:
    other = build(tiny, backend)
    stream = other.stream("hello", GREEDY)
    next(stream)
    other.shutdown()
    other.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        other.generate("hello", GREEDY)
