# An engine that ends as soon as it starts: the one before it is the stage `engine`.
FROM engine
ENTRYPOINT ["python", "-c", "raise SystemExit('this image does not start')"]
