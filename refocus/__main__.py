"""``python -m refocus`` is ``refocus``."""

from refocus.edge.cli import main

if __name__ == "__main__":
    main()
