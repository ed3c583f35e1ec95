"""What is compared: fixed limits, published rules, searches, and the product's own loop."""
