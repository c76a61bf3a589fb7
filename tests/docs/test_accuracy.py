"""The page of measured accuracy is what its rows say."""

from dataclasses import replace

from benchmarks.accuracy_page import PAGE, page
from benchmarks.accuracy_rows import Row, read_results


def test_the_page_has_the_rows_that_were_measured():
    assert page(read_results()) == PAGE.read_text(), "python -m benchmarks.accuracy_table --page"


def test_a_file_that_tensorrt_refuses_is_no_peer_and_the_worst_output_decides():
    ours = Row("net", "auto", "a package", "0", "trtcal", db=(30.0, 20.0))
    mean = replace(ours, method="mse", db=(40.0, 12.0))
    legal = replace(ours, method="ORT MinMax", db=(21.5, 25.0))
    refused = replace(ours, method="NNCF", db=(60.0, 60.0), refusal="uint8")
    text = page([ours, mean, legal, refused])
    assert "| net | a package | 12.0 (mse) | 20.0 | - | - | **21.5** (ORT MinMax) |" in text
    assert "net: ORT MinMax (peer) leads `auto` by 1.5 dB." in text
    assert "within 0.3 dB of the best single method or above on 1 of 1" in text
    assert "ahead of every legal peer" not in text
    assert "All peers were measured on 0 of 1 networks" in text
    assert "| NNCF | 60.0 | 60.0 | - | - | - | not legal: uint8 |" in text
