"""The engine: request life, scheduler, radix cache, pools, executor, models, sampler, server."""
