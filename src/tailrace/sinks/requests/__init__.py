"""What sinks share whose destinations take requests: webhooks, and the services of clouds."""
