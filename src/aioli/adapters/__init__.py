"""Mixing inside other people's trainers."""
