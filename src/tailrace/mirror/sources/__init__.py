"""Where a mirror reads from: Tailrace pipelines or Creek producers."""
