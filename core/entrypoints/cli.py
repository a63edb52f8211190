"""The command `outrider`: flags only. What a command does is imported when it runs, because torch takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="outrider",
    help="Lossless speculative decoding with pluggable drafters and attention backends.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Model = Annotated[str | None, typer.Option(help="Folder, hub id, GGUF file, or smollm2.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML or YAML file of settings; flags win over it.")
]
Dtype = Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")]
MaxModelLen = Annotated[int | None, typer.Option(help="Most tokens of prompt and output together.")]
Backends = Annotated[
    list[str] | None,
    typer.Option("--attention-backend", help="Ask only these backends, in this order. Repeatable."),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Of the linear layers, on a CPU: auto, float32, bfloat16 or int8.", show_default="auto"
    ),
]
Extensions = Annotated[
    list[str] | None, typer.Option("--extension", help="Plugin that wraps hooks. Repeatable.")
]
NumSpeculativeTokens = Annotated[int | None, typer.Option(help="Most tokens drafted for a request per step.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens per answer.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
PromptsFile = Annotated[
    Path | None,
    typer.Option(help="A prompt per line; or .jsonl with `turns` (Spec-Bench) or `prompt` per line."),
]


@app.command()
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; without one, standard input is read.")
    ] = None,
    prompts_file: PromptsFile = None,
    model: Model = None,
    method: Annotated[
        str | None, typer.Option(help="Proposer: installed name, ./file.py:Class or package.module:Class.")
    ] = None,
    num_speculative_tokens: NumSpeculativeTokens = None,
    option: Annotated[list[str] | None, typer.Option(help="key=value for the proposer. Repeatable.")] = None,
    speculative_config: Annotated[str | None, typer.Option(help="JSON object, vLLM's flat form.")] = None,
    config: ConfigFile = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k likeliest tokens; 0: all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the likeliest tokens that make up this mass.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Drop tokens less likely than this times the likeliest.")
    ] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text. Repeatable.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--raw", help="Use the chat template, or not. Default: if there is one."),
    ] = None,
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Paint tokens by where they came from.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode plainly too; exit status 1 if the tokens differ.")
    ] = False,
    dtype: Dtype = None,
    weights: Weights = None,
    max_model_len: MaxModelLen = None,
    attention_backend: Backends = None,
    extension: Extensions = None,
) -> None:
    """Stream the answer to a prompt."""
    with _clear_errors():
        from rich.console import Console

        from .flags import engine_config, sampling_params, speculative_flags

        params = sampling_params(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            max_tokens=max_tokens,
            stop=tuple(stop or ()),
        )
        engine = engine_config(
            config_file=config,
            speculative=speculative_flags(
                config_json=speculative_config,
                method=method,
                num_speculative_tokens=num_speculative_tokens,
                options=option or (),
            ),
            model=model,
            dtype=dtype,
            weights=weights,
            max_model_len=max_model_len,
            attention_backend=attention_backend or None,
            extensions=extension or None,
        )
        prompts = _prompts(prompt, prompts_file)

        from .generate import GenerateCommand

        command = GenerateCommand(
            engine,
            prompts,
            params,
            chat=chat,
            show_drafts=show_drafts,
            compare=compare,
            out=Console(soft_wrap=True, highlight=False),
            err=Console(stderr=True, soft_wrap=True, highlight=False),
        )
        raise typer.Exit(command.run())


@app.command()
def bench(
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: plain, proposers, options as name:key=value:key=value. "
            "Default: plain, and what --config drafts with."
        ),
    ] = None,
    model: Model = None,
    prompts_file: PromptsFile = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts per category.")] = None,
    max_tokens: MaxTokens = 128,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Prompts of one category at a time; repeated if there are fewer.")
    ] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Times that everything is run.")] = 1,
    num_speculative_tokens: NumSpeculativeTokens = None,
    temperature: Temperature = 0.0,
    seed: Annotated[int, typer.Option(help="Of each batch's first request; the next have one more.")] = 0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Always generate --max-tokens tokens.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every number to this file.")] = None,
    config: ConfigFile = None,
    dtype: Dtype = None,
    weights: Weights = None,
    max_model_len: MaxModelLen = None,
    attention_backend: Backends = None,
    extension: Extensions = None,
) -> None:
    """Measure ways of decoding against each other on the same prompts."""
    with _clear_errors():
        from .flags import engine_config, sampling_params

        engine = engine_config(
            config_file=config,
            model=model,
            dtype=dtype,
            weights=weights,
            max_model_len=max_model_len,
            attention_backend=attention_backend or None,
            extensions=extension or None,
        )
        params = sampling_params(
            temperature=temperature, seed=seed, max_tokens=max_tokens, ignore_eos=ignore_eos
        )

        from .bench_command import run_bench_command

        status = run_bench_command(
            engine,
            methods=methods,
            num_speculative_tokens=num_speculative_tokens,
            prompts_file=prompts_file,
            limit=limit,
            sampling_params=params,
            batch_size=batch_size,
            repeats=repeats,
            json_file=json_file,
        )
        raise typer.Exit(status)


@app.command()
def plugins(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Import every plugin and tell which are broken.")
    ] = False,
) -> None:
    """List the installed plugins."""
    with _clear_errors():
        from .plugins_command import run_plugins_command

        raise typer.Exit(run_plugins_command(as_json=as_json, check=check))


def main() -> None:
    """Run the command line."""
    app()


def _prompts(prompt: str | None, prompts_file: Path | None) -> list[str]:
    from ..api import ConfigError
    from .prompt_files import read_prompts

    if prompts_file is not None:
        if prompt is not None:
            raise ConfigError("both a prompt and --prompts-file are given; keep one of them")
        return [one.text for one in read_prompts(prompts_file)]
    if prompt is not None:
        return [prompt]
    if sys.stdin.isatty():
        raise ConfigError("no prompt: give it as an argument, with --prompts-file, or through standard input")
    return [sys.stdin.read().rstrip("\n")]


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Print what Outrider raises on purpose as a message, without a traceback, and exit with status 2."""
    from ..api import OutriderError

    try:
        yield
    except OutriderError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(2) from error
