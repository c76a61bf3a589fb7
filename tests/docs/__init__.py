"""The examples of the documents, and the files that they begin from."""
