"""Make the README's pictures from the gallery: `make pictures`."""

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.browser.conftest import find_browser

ROOT = Path(__file__).parent.parent.parent
PICTURES = {
    "report-classifier": ("classifier", "light", 1080),
    "report-vit": ("vit", "dark", 1000),
    "report-trouble": ("digits-trouble", "light", 1000),
}
"""Of each picture the report, the scheme, and the height in pixels."""

WIDTH_PX = 1200


def main() -> None:
    """Write the pictures into docs/images: the top of each page."""
    path = find_browser()
    if path is None:
        sys.exit("no Chromium here (Debian: chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        for name, (report, scheme, height) in PICTURES.items():
            size = {"width": WIDTH_PX, "height": height}
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto((ROOT / "reports" / f"{report}.html").as_uri())
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            few = picture.quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
            few.save(ROOT / "docs" / "images" / f"{name}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
