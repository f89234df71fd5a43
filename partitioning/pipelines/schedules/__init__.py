"""Sources of tables: named schedules, transformations of tables, and a search."""
