"""Symmetric operators: one small class for each kind, and what makes one of whatever people have."""
