"""`python -m reference_pages` writes the tables of every page again."""

from reference_pages.page import pages

for page in pages():
    page.path.write_text(page.refreshed(), encoding="utf-8")
