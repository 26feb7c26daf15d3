"""The sink `http`: webhooks.

A message is the body of a request, or several are a JSON array. `addresses` decides where requests
may go, `answers` what a response means, `signature` signs requests as Standard Webhooks describes.
"""
