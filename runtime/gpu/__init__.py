"""The executor on a GPU: device tables, captured graphs, sampling, memory."""
