"""The sink `sns`: topics of Amazon SNS, standard or FIFO."""
