"""`tailrace broker` with its users, ACLs and consumer groups."""
