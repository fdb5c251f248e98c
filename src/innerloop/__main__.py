"""``python -m innerloop``."""

from innerloop.cli.main import run

if __name__ == "__main__":
    run()
