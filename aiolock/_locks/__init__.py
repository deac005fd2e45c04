"""The locks that users create: descriptions, without state or I/O of their own."""
