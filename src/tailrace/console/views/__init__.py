"""What the pages show: each view reads the running system and returns a document."""
