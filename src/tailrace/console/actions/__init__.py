"""What operators can do: each action says what it will do, then does it as the command would."""
