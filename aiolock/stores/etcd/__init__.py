"""Locks in etcd 3.4 and newer: the extra ``etcd``."""
