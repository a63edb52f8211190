"""The command line: what it prints, where, and with which exit status."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outrider import LLM, SamplingParams
from outrider.entrypoints.cli import app
from outrider.testing.tiny_models import ALPHABET

Run = Callable[..., Any]

ORACLE = "outrider.testing.proposers:OracleProposer"
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture
def run(tiny: Path, backend: str) -> Run:
    """Call `outrider <arguments>` with the tiny model."""

    def call(command: str, *arguments: object, stdin: str | None = None) -> Any:
        engine = ["--model", tiny, "--attention-backend", backend, "--max-model-len", 64, "--max-tokens", 12]
        return CliRunner().invoke(app, [command, *map(str, [*engine, *arguments])], input=stdin)

    return call


@pytest.fixture(scope="module")
def truth(tiny: Path, backend: str) -> list[int]:
    """Prompt and greedy continuation of "hello"."""
    with LLM(str(tiny), attention_backend=backend) as llm:
        [output] = llm.generate("hello", GREEDY, use_tqdm=False)
    return [*output.prompt_token_ids, *output.outputs[0].token_ids]


@pytest.fixture
def oracle(truth: list[int]) -> list[str]:
    """Flags for a drafter that knows the continuation, but for one token, and always drafts."""
    options = f'{{"truth": [{truth}], "wrong_at": [7], "adaptive": false}}'
    return ["--method", ORACLE, "--num-speculative-tokens", "3", "--speculative-config", options]


def text(truth: list[int]) -> str:
    return "".join(ALPHABET[token_id] for token_id in truth[5:])


def test_the_text_goes_to_stdout_and_the_rest_to_stderr(run: Run, truth: list[int]) -> None:
    result = run("generate", "hello")
    assert result.stdout == text(truth) + "\n"
    assert re.search(r"12 tokens in [\d.]+ s, [\d.]+ tokens/s\n", result.stderr)
    assert result.exit_code == 0


def test_the_prompt_may_come_through_standard_input(run: Run, truth: list[int]) -> None:
    assert run("generate", stdin="hello\n").stdout == text(truth) + "\n"


def test_a_file_of_prompts_is_answered_one_by_one(run: Run, truth: list[int], tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("hello\nhello\n")
    result = run("generate", "--prompts-file", file)
    assert result.stdout == f"> hello\n{text(truth)}\n" * 2
    assert "24 tokens in" in result.stderr


def test_drafting_is_told_in_the_last_line(run: Run, truth: list[int], oracle: list[str]) -> None:
    result = run("generate", "hello", *oracle)
    assert result.stdout == text(truth) + "\n"
    assert "mean acceptance length 3.33, accepted per position 1.00 0.67 0.67" in result.stderr


@pytest.mark.parametrize("command", ["generate", "bench"])
def test_the_format_of_weights_reaches_the_engine(
    run: Run, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outrider.entrypoints import engine_factory

    seen, load_model = [], engine_factory.load_model

    def loading(config: Any) -> Any:
        seen.append(load_model(config))
        return seen[-1]

    monkeypatch.setattr(engine_factory, "load_model", loading)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello\n")
    assert run(command, "--prompts-file", prompts, "--weights", "int8").exit_code == 0
    assert run(command, "--prompts-file", prompts).exit_code == 0
    assert [loaded.weights for loaded in seen] == ["int8", "float32"]


def test_a_format_that_there_is_not_is_refused_with_those_that_there_are(run: Run) -> None:
    result = run("generate", "hello", "--weights", "int4")
    assert result.exit_code == 2
    for words in ("weights='int4'", "'auto'", "'float32'", "'bfloat16'", "'int8'"):
        assert words in result.stderr


def test_show_drafts_prints_the_same_text_and_a_legend(run: Run, truth: list[int], oracle: list[str]) -> None:
    lines = run("generate", "hello", "--show-drafts", *oracle).stdout.splitlines()
    assert lines[0] == text(truth)
    assert [line.split(" tokens")[0].split() for line in lines[1:5]] == [
        ["accepted", "7"],
        ["recovered", "1"],
        ["bonus", "2"],
        ["sampled", "2"],
    ]


def test_compare_says_identical_and_both_speeds(run: Run, oracle: list[str]) -> None:
    result = run("generate", "hello", "--compare", *oracle)
    assert "identical to plain decoding, all 12 tokens" in result.stdout
    assert re.search(r"plain [\d.]+ tokens/s, \S+OracleProposer [\d.]+ tokens/s, [\d.]+ times", result.stdout)
    assert result.exit_code == 0


def test_compare_repeats_the_seed_that_was_drawn(run: Run, oracle: list[str]) -> None:
    result = run("generate", "hello", "--compare", "--temperature", 1, *oracle)
    assert "identical to plain decoding, all 12 tokens" in result.stdout
    assert result.exit_code == 0


def test_compare_finds_a_difference(
    run: Run, oracle: list[str], truth: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = LLM.generate

    def forged(self: LLM, *args: Any, **kwargs: Any) -> Any:
        outputs = generate(self, *args, **kwargs)
        outputs[0].outputs[0]._token_ids = [*truth[:7], 1, *truth[8:]]
        return outputs

    monkeypatch.setattr(LLM, "generate", forged)
    result = run("generate", "hello", "--compare", *oracle)
    assert "DIFFERENT from plain decoding, first difference at output token 2" in result.stdout
    assert f"'{ALPHABET[truth[7]]}' (token {truth[7]})" in result.stdout
    assert "identical" not in result.stdout
    assert result.exit_code == 1


def test_chat_is_the_default_where_there_is_a_template(
    run: Run, truth: list[int], tiny: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = "{% for m in messages %}hel{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    config = tmp_path / "run.yaml"
    config.write_text(f"tokenizer: {tmp_path}\n")
    assert run("generate", "lo", "--config", config).stdout == text(truth) + "\n"
    assert run("generate", "lo", "--config", config, "--chat").stdout == text(truth) + "\n"
    assert run("generate", "hello", "--config", config, "--raw").stdout == text(truth) + "\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hello", "--method", "nobody"], "nobody"),
        (["hello", "--method", ORACLE, "--option", "truth=[]", "--option", "size=3"], "size"),
        (["hello", "--option", "size"], "expected key=value"),
        (["hello", "--speculative-config", "{"], "not JSON"),
        (["hello", "--temperature", "-1"], "SamplingParams.temperature=-1.0"),
        (["hello", "--max-tokens", "0"], "SamplingParams.max_tokens=0"),
        (["hello", "--chat"], "no chat template"),
        (["hello", "--compare"], "--method"),
        (["hello", "--prompts-file", "nothing.txt"], "both a prompt and --prompts-file"),
        (["--prompts-file", "nothing.txt"], "nothing.txt"),
        (["hello", "--config", "nothing.toml"], "nothing.toml"),
        (["hello", "--dtype", "float3"], "float3"),
        ([""], "the prompt has no tokens"),
    ],
)
def test_mistakes_are_one_message_and_status_2(run: Run, arguments: list[str], words: str) -> None:
    result = run("generate", *arguments)
    assert result.exit_code == 2
    assert result.stderr.count("error: ") == 1
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_a_model_must_be_named() -> None:
    result = CliRunner().invoke(app, ["generate", "hello"])
    assert (result.exit_code, result.stderr.count("--model")) == (2, 1)


def test_bench_prints_a_table_and_writes_a_file(run: Run, tmp_path: Path, truth: list[int]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"category": "a", "turns": ["hello"]}, {"category": "a", "turns": ["abc"]}, {"turns": ["xyz"]}]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    file = tmp_path / "bench.json"
    method = f"{ORACLE}:truth=[]"
    result = run(
        *["bench", "--methods", f"plain,{method}", "--prompts-file", prompts, "--limit", 1],
        *["--repeats", 2, "--json", file],
    )
    assert result.exit_code == 0, result.output
    assert "identical" in result.stdout
    assert "2/2" not in result.stdout
    assert result.stdout.count("4/4") == 2
    document = json.loads(file.read_text())
    assert [(m["method"], m["num_identical"], m["num_compared"]) for m in document["methods"]] == [
        ("plain", 4, 4),
        (method, 4, 4),
    ]
    assert document["methods"][0]["num_tokens"] == 48
    # Turn by turn, and not always the same first.
    assert [one["method"] == "plain" for one in document["runs"]] == [
        *[True, False, False, True],
        *[False, True, True, False],
    ]
    assert document["runs"][0]["prompts"][0]["token_ids"] == truth[5:]
    assert document["settings"]["num_prompts"] == 2


def test_bench_takes_several_prompts_at_a_time(run: Run, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello\nabc\nxyz\n")
    file = tmp_path / "bench.json"
    assert run("bench", "--prompts-file", prompts, "--batch-size", 2, "--json", file).exit_code == 0
    assert [len(one["prompts"]) for one in json.loads(file.read_text())["runs"]] == [2, 1]


def test_a_batch_has_one_category_and_a_seed_for_each_request(run: Run, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"category": category, "prompt": "hello"} for category in "abaa"]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    file = tmp_path / "bench.json"
    arguments = ["--prompts-file", prompts, "--batch-size", 2, "--temperature", 1, "--json", file]
    assert run("bench", *arguments).exit_code == 0
    runs = [one["prompts"] for one in json.loads(file.read_text())["runs"]]
    assert [[prompt["question_id"] for prompt in prompts] for prompts in runs] == [
        ["1", "3"],
        ["4"],
        ["2", "2"],  # repeated to fill the batch
    ]
    first, second, alone = runs[2][0]["token_ids"], runs[2][1]["token_ids"], runs[1][0]["token_ids"]
    assert first == alone  # the same words and seed
    assert first != second


def test_bench_takes_the_drafter_of_the_config_file(run: Run, tmp_path: Path) -> None:
    config, file = tmp_path / "engine.yaml", tmp_path / "bench.json"
    speculative = {"method": ORACLE, "num_speculative_tokens": 2, "options": {"truth": []}}
    config.write_text(json.dumps({"speculative_config": speculative, "max_model_len": 64}))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello\n")
    arguments = ["bench", "--config", config, "--prompts-file", prompts, "--json", file]

    def measured(*more: object) -> dict[str, object]:
        assert run(*arguments, *more).exit_code == 0
        settings = json.loads(file.read_text())["settings"]
        assert settings["max_model_len"] == 64
        return {
            label: one and one["num_speculative_tokens"]
            for label, one in settings["speculative_configs"].items()
        }

    assert measured() == {"plain": None, ORACLE: 2}
    assert measured("--num-speculative-tokens", 3) == {"plain": None, ORACLE: 3}
    assert measured("--methods", "plain") == {"plain": None}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "plain,plain"], "only once"),
        (["--methods", "nobody"], "nobody"),
        (["--json", "nowhere/bench.json"], "there is no folder 'nowhere'"),
        (["--prompts-file", "nothing.jsonl"], "nothing.jsonl"),
    ],
)
def test_bench_mistakes_are_one_message_and_status_2(run: Run, arguments: list[str], words: str) -> None:
    result = run("bench", *arguments)
    assert (result.exit_code, result.stderr.count("error: ")) == (2, 1)
    assert words in result.stderr


def test_plugins_and_help_do_not_wait_for_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from outrider.entrypoints.cli import app\n"
        "for arguments in (['plugins'], ['plugins', '--json'], ['generate', '--help'], ['bench', '--help']):\n"
        "    assert CliRunner().invoke(app, arguments).exit_code == 0, arguments\n"
        "assert not {'torch', 'transformers', 'numba'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
