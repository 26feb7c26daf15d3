"""`tailrace demo`: the whole system with live traffic, on the terminal."""
