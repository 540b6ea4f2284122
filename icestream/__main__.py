"""`python -m icestream` is the `icestream` command."""

from icestream.cli import main

if __name__ == "__main__":
    main()
