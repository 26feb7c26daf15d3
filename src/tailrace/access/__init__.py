"""Who may do what over HTTP: users, sessions, tokens of programs, and limits for guesses.

Nothing here knows routes or pages. `tailrace.run.endpoints` and `tailrace.console` ask `Access` who
sends a request, and compare the answer with what the request needs.
"""
