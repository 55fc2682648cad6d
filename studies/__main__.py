"""Run ``python -m studies``."""

from studies.commands.app import main

if __name__ == "__main__":
    main()
