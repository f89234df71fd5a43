"""The ledger of returns: rows of earlier commits, which fresh runs are compared with."""
