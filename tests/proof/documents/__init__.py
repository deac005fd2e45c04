"""A model of stores whose holds live with sessions: see `world`."""
