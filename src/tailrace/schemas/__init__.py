"""What tables look like, for consumers: schema documents, and drift the stream does not show."""
