"""`python -m safebo.cli`."""

from safebo.cli import main

if __name__ == "__main__":
    main()
