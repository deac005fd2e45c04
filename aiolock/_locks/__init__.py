"""What users hold in their hands: descriptions of locks, without state or I/O of their own."""
