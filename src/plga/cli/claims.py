"""``plga claims``: what is proved, what holds under a condition, what was measured, what is conjectured."""

from typing import Annotated

import typer


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print the registry as JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of docs/claims.md.")] = False,
) -> None:
    """Claims of arXiv:2608.10288 and of this project: label, and where to check each.

    Theorems named proofs/FILE.v are machine-checked (make proofs); the last column says what they leave out.
    """
    import dataclasses
    import json

    from plga.audit.claims import markdown, read_claims

    claims = read_claims()
    if as_json and as_markdown:
        raise ValueError("--json and --markdown are both given, expected one of them")
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(claim) for claim in claims], indent=1, ensure_ascii=False))
        return
    if as_markdown:
        typer.echo(markdown(claims), nl=False)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Claims (arXiv:2608.10288 and this project)", show_lines=True)
    for name in ("number", "claim", "label", "where to check it", "not covered"):
        table.add_column(name, overflow="fold", ratio=1 if name == "number" else 4)
    for claim in claims:
        where = "\n".join((*claim.where, *filter(None, [claim.evidence])))
        table.add_row(*map(escape, (claim.number, claim.statement, claim.full_label, where, claim.not_covered)))
    Console(highlight=False, width=None if Console().is_terminal else 140).print(table)
