"""`python -m safebo`: the same as the command `safebo`."""

from safebo.cli import main

if __name__ == "__main__":
    main()
