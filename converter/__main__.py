"""`python -m converter` is the same program as `convert`."""

from converter.cli import main

if __name__ == "__main__":
    main()
