"""Programs of the benchmark `peers` that run other libraries in environments of their own, without polyfed."""
