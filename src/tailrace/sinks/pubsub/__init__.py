"""The sink `pubsub`: topics of Google Cloud Pub/Sub, with ordering keys."""
