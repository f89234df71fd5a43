"""Tables of pipelines run: cell by cell on one device, and in one program of all devices."""
