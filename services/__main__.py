"""`python -m services` is the `icestream` command."""

from services.cli import main

if __name__ == "__main__":
    main()
