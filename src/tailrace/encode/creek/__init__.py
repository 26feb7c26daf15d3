"""Creek messages: Avro schemas, fingerprints, and changes encoded by them."""
