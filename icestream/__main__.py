"""Entry point of `python -m icestream`, the same as the `icestream` command."""

from icestream.cli import main

if __name__ == "__main__":
    main()
