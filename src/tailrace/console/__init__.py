"""The console: pages for people and `/api/v1` for programs, over one set of views and actions.

A **view** reads the running system and returns a document; a page shows it, and the API returns it.
An **action** says what it will do, and does it; the console asks in between. Views and actions call
the functions of the command line, and nothing is implemented twice.

Nothing on a page comes from outside, and everything works without the script.
"""
