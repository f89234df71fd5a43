"""Reporters that tests look into."""

from troupe.launch.logging.report import Reporter


class Lines(Reporter):
    """Keeps the lines that it is told."""

    def __init__(self):
        self.lines = []

    def line(self, text):
        self.lines.append(text)
