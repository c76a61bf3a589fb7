def write_page(rows): pass
