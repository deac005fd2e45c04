"""The same few tasks in each task framework: see `Tasks`."""
