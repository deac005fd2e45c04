"""The same small application in each web framework: see `Bodies`."""
