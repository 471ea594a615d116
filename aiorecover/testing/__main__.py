"""``python -m aiorecover.testing --brokers 3``: a mock cluster that takes commands as JSON lines on stdin."""

from aiorecover.testing.mock_cluster_process import serve

if __name__ == "__main__":
    serve()
