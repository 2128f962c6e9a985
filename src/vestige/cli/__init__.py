"""The command line."""


def main() -> None:
    """Run the command line."""
    from vestige.cli.app import main as run

    run()
