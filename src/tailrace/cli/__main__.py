"""`python -m tailrace.cli`, where the script is not on PATH."""

from tailrace.cli import main

if __name__ == "__main__":
    main()
