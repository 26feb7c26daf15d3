"""`tailrace log` and `tailrace tail`: a log on the terminal."""
