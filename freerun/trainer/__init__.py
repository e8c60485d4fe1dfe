"""Advantage, packing, loss, optimizer, trainer."""
