"""``python -m refocus`` is ``refocus``."""

from refocus.edge.commands.app import main

if __name__ == "__main__":
    main()
