"""What runs on a device: written for Python 3.8 and its standard library, sent there as one file.

main        the loop: one request, one answer
frames      requests, answers and errors on a pair of streams
blobs       files by content
jobs        detached work with its state in a folder, one at a time on a device
timing      the job that times engines in turns
runtimes    the interface of runtimes, and which there are
machine     what the device is, and what it lacks

`packing.py` lists the files of the package `trtcal` that go along, under their names.
"""
