"""The quorum lock as a model: servers, clients, and a network, in virtual time.

`aiolock.stores.quorum._votes` is the same code that a client runs. Read `server`, `client`,
`world`, `faults`; then `exhaustive`, which tries every order of events of a small model.
"""
