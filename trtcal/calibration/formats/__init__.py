"""Tables of ranges as other tools write and read them."""
