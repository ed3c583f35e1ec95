"""Commands of the documentation: found, checked, run, and their outputs compared.

page -> blocks -> commands -> parsed (every page) or run in order (pages with `console` blocks).
"""
