"""`python -m reference_pages` writes what is generated of every page again."""

from reference_pages.page import pages

for page in pages():
    page.path.write_text(page.text, encoding="utf-8")
