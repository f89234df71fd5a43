"""Where tables come from: named schedules, transformations of tables, and a search."""
