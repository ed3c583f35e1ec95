# An engine that answers rightly and takes two seconds for each step more than the stage `engine`.
FROM engine
COPY slow_engine.py /opt/slow_engine.py
ENTRYPOINT ["python", "/opt/slow_engine.py"]
