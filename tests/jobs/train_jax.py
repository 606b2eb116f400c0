"""A few checked sums over all processes, by JAX on CPUs; who they are it finds out itself."""

import sys

import jax
import jax.numpy as jnp
from ending import end_if_asked, trained
from jax.experimental import multihost_utils

jax.distributed.initialize(initialization_timeout=60)
rank, world = jax.process_index(), jax.process_count()
for _ in range(3):
    total = multihost_utils.process_allgather(jnp.full((8,), float(rank + 1))).sum(axis=0)
    assert total[0] == world * (world + 1) / 2, total
    end_if_asked(rank, sys.argv[1:])
jax.distributed.shutdown()
trained(rank, world)
