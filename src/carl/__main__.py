"""`python -m carl`, so that `torchrun -m carl` works."""

from carl.cli import main

if __name__ == "__main__":
    main()
