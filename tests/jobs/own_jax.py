"""JAX as its documentation starts several processes."""

import jax
import jax.numpy as jnp
from ending import formed
from jax.experimental import multihost_utils

jax.distributed.initialize()
total = multihost_utils.process_allgather(jnp.float32(jax.process_index() + 1)).sum()
formed(jax.process_count(), float(total))
