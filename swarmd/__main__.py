"""`python -m swarmd`. Kept this light because a spawned child may import the main module again."""

from __future__ import annotations

if __name__ == "__main__":
    from swarmd.cli.main import main

    main()
