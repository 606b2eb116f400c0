"""
NCCL's choice of interfaces and devices, as pure functions of facts and environment.

From NCCL's source, tags 2.18 to 2.30 (`src/misc/socket.cc`, `src/bootstrap.cc`,
`src/transport/net_socket.cc`), and compared with the library's own answers.
"""
