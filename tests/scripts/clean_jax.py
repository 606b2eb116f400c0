"""JAX: one process a node, the coordinator from the command line or the environment."""

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils


def main() -> None:
    jax.distributed.initialize()
    total = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(jnp.ones(jax.local_device_count()))
    multihost_utils.sync_global_devices("done")
    if jax.process_index() == 0:
        print(total[0])
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
