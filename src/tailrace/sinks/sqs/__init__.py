"""The sink `sqs`: queues of Amazon SQS, standard or FIFO."""
