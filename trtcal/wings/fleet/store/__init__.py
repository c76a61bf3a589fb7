"""The artifact store: runs as content-addressed objects and in-toto Statements, on a disk or in S3.

    trtcal-store.json                      what makes a place a store, and its format
    objects/sha256/ab/abcd...              a file's bytes, under their own SHA-256
    tags/<digest of a Statement>/key=value tags of the user's own
    runs/<time>-<digest>.json              a run: its Statement, under its own SHA-256

Every name but that of a tag has the digest of what stands under it. So two writers of one name write
the same bytes, whoever comes last, and a reader knows what is whole. A run is there as soon as its
Statement is, which is written last.
"""
