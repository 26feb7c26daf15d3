"""`tailrace status`: the command, and what it draws."""
