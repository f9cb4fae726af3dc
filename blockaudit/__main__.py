"""`python -m blockaudit`."""

from blockaudit.cli.main import main

if __name__ == "__main__":
    main()
