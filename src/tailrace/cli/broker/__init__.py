"""`tailrace broker` with its users and ACLs."""
