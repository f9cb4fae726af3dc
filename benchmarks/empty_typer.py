"""A Typer command that does nothing: what any command line of this kind costs."""

import typer

app = typer.Typer()


@app.command()
def main() -> None:
    pass


if __name__ == "__main__":
    app()
