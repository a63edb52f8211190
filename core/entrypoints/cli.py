"""The command line. Each command imports what it needs when it runs, so that listing plugins loads no torch."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _outrider() -> None:
    """Outrider: lossless speculative decoding as a plugin framework."""


@app.command()
def plugins(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    check: Annotated[bool, typer.Option(help="Import each plugin and say which are broken.")] = False,
) -> None:
    """List the installed plugins."""
    from .plugins_command import run_plugins_command

    raise typer.Exit(run_plugins_command(as_json=as_json, check=check))


def main() -> None:
    """Entry point of the `outrider` command."""
    app()
