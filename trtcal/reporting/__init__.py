"""The report on a run: a sealed JSON document, and one HTML page that shows it."""
