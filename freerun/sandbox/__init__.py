"""Runs untrusted Python and tests it from outside.

    calling process                     sandbox.py      asks, reads the verdict
      └─ fork server                    server.py       a small process, started once, in its own namespaces
           └─ executor                                  one per execution: waits, kills, reports
                ├─ candidate            candidate.py    the untrusted program ◄┐ plain data only
                └─ examiner             examiner.py     the tests             ◄┘ (link.py, plain.py)

`jail.py` is what a child gives up before it reads a line of what it runs; `home.py` is where it lives.
Everything from `server.py` down imports only the standard library: it is loaded into a process that must stay
small.
"""
