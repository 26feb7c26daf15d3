"""What the running system tells about itself: logs, and failpoints for the tests that break it."""
