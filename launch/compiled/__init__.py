"""Runs whose acting, environment, replay and learning are one program."""
